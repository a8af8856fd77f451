"""Which kernel packages there are, from the entry points of what is installed."""

import importlib.metadata
import re
from types import SimpleNamespace

import pytest

from pyxla import packages
from tests.conftest import ROOT

OWN = ("xla_gpu", "pyxla_kernels")


@pytest.fixture
def installed(monkeypatch):
    """Replaces the installed entry points by (namespace, package) pairs; returns the packages that are then found."""

    def install(*entries: tuple[str, str]) -> tuple[packages.KernelPackage, ...]:
        found = [SimpleNamespace(name=name, value=value, dist=None) for name, value in entries]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found if group == "pyxla.kernels" else [])
        monkeypatch.setattr(packages, "kernel_packages", packages.kernel_packages.__wrapped__)
        monkeypatch.setattr(packages, "op_pattern", packages.op_pattern.__wrapped__)
        return packages.kernel_packages()

    return install


def test_own_package_comes_first(installed):
    own, other = installed(("asyncs", "asyncio"), OWN)
    assert (own.namespace, own.name, own.folder) == (*OWN, ROOT / "kernels")
    assert other.namespace == "asyncs" and not other.is_checkout and own.is_checkout
    assert own.module("rms_norm") == "pyxla_kernels.rms_norm.rms_norm"
    assert own.folders()["rms_norm_triton"] == "rms_norm" and own.folders()["rms_norm"] is None


@pytest.mark.parametrize("gone", ["no_such_package", "no_such.package", "json.tool"])
def test_package_that_is_gone_leaves_the_others(installed, gone):
    assert [package.name for package in installed(("gone", gone), OWN)] == ["pyxla_kernels"]


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        ("aten", "a namespace that torch does not have, got 'aten'"),
        ("torch_xla", "a namespace that torch does not have, got 'torch_xla'"),
        ("Mine", "lower-case letters, digits and _, a letter first, at most 64 characters, got 'Mine'"),
        ("a__b", "lower-case letters, digits and _, a letter first, at most 64 characters, got 'a__b'"),
    ],
)
def test_namespace_that_ops_cannot_have_leaves_the_others(installed, namespace, expected):
    message = f"asyncio: namespace: expected {expected}, so its ops are left out"
    with pytest.warns(match=f"^{re.escape(message)}$"):
        found = installed((namespace, "asyncio"), OWN)
    assert [package.name for package in found] == ["pyxla_kernels"]


def test_package_that_cannot_be_found_leaves_the_others(installed, tmp_path, monkeypatch):
    (tmp_path / "broken_parent.py").write_text("raise OSError('no such disk')")
    monkeypatch.syspath_prepend(tmp_path)
    message = "package: expected one that Python can find, got OSError: no such disk, so its ops are left out"
    with pytest.warns(match=message):
        assert [package.name for package in installed(("mine", "broken_parent.kernels"), OWN)] == ["pyxla_kernels"]


def test_ops_are_found_in_names_of_every_namespace(installed):
    installed(OWN, ("xla_gpu_more", "asyncio"), ("mine", "json"))
    found = {
        text: packages.op_pattern().fullmatch(text) for text in ("xla_gpu::a", "xla_gpu_more_b", "mine_c_d", "his_e")
    }
    assert [match and match[1] for match in found.values()] == ["a", "b", "c_d", None]
