"""An op whose CUDA code includes the headers of an installed wheel, which wrapped.json names."""

import json
import shutil
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT
from tests.devtool_tree import Tree, needs_nvcc

DESCRIPTION = {"name": "Theirs", "version": "1.2", "licence": "MIT", "wheel": "their-headers", "include": "theirs/data"}
KERNEL = """#include <theirs.cuh>

namespace wrapping {

int Answer() { return kTheirs; }

}  // namespace wrapping
"""


def install(tree: Tree, version: str) -> None:
    """Installs the files of a wheel as pip does."""
    site = tree.root / "site"
    (site / "theirs/data").mkdir(parents=True)
    (site / "theirs/data/theirs.cuh").write_text("constexpr int kTheirs = 42;\n")
    (site / f"their_headers-{version}.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.1\nName: their-headers\nVersion: {version}\n"
    (site / f"their_headers-{version}.dist-info/METADATA").write_text(metadata)


def make(tmp_path: Path, version: str | None = "1.2", **changes: str) -> Tree:
    """A tree with the op and the wheel of this version; `changes` go into wrapped.json, where None removes a key."""
    tree = Tree(tmp_path)
    shutil.rmtree(tree.kernels / "simple_add")
    tree.tiny_op("wrapping")
    (tree.kernels / "wrapping/wrapping.cu").write_text(KERNEL)
    described = {name: value for name, value in (DESCRIPTION | changes).items() if value is not None}
    (tree.kernels / "wrapping/wrapped.json").write_text(json.dumps(described))
    if version:
        install(tree, version)
    return tree


def manifest(tree: Tree) -> dict:
    return json.loads(tree.library("wrapping").with_suffix(".json").read_text())


@pytest.mark.slow
@needs_nvcc
def test_headers_of_the_wheel_are_compiled_and_its_version_and_licence_recorded(tmp_path):
    tree = make(tmp_path)
    result = tree.run("build", "wrapping", "--cuda", "on")
    assert result.returncode == 0, result.stderr
    recorded = {"name": "Theirs", "version": "1.2", "licence": "MIT", "library": None, "sha256": None}
    assert manifest(tree)["wrapped"] == recorded and manifest(tree)["cuda_architectures"]
    assert str(tmp_path).encode() not in tree.library("wrapping").read_bytes()
    result = tree.run("verify", str(tree.library("wrapping")))
    assert result.returncode == 0 and "Theirs 1.2, MIT" in result.stdout


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("cuda", ["on", "auto"])
def test_without_the_wheel(tmp_path, cuda):
    """With `--cuda on` the build fails; otherwise the op is built for the CPU, as without nvcc."""
    tree = make(tmp_path, version=None)
    result = tree.run("build", "wrapping", "--cuda", cuda)
    if cuda == "on":
        assert result.returncode == 1 and "\nhint: " in result.stderr
        assert "wrapping: wrapped wheel: expected their-headers 1.2 beside " in result.stderr
        assert " (PYXLA_CUDA=ON), got none\n" in result.stderr
    else:
        assert result.returncode == 0, result.stderr
        assert manifest(tree)["cuda_architectures"] == [] and manifest(tree)["wrapped"] is None


@pytest.mark.slow
def test_without_cuda_the_wheel_is_not_looked_for(tmp_path):
    tree = make(tmp_path, version="7.0")
    result = tree.run("build", "wrapping", "--cuda", "off")
    assert result.returncode == 0, result.stderr
    assert manifest(tree)["wrapped"] is None


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(
    ("installed", "changes", "message"),
    [
        ("1.3", {}, "wrapped wheel: expected their-headers 1.2, got 1.3"),
        ("1.2", {"include": "theirs/include"},
         "wrapped wheel: expected the folder theirs/include in their-headers 1.2, got none"),
        ("1.2", {"wheel": "no-such-wheel"}, "wrapped wheel: expected no-such-wheel 1.2 beside "),
        ("1.2", {"include": None}, "wrapped.json: expected include as a text, got "),
    ],
    ids=["another-version", "no-folder", "no-such-wheel", "no-include"],
)  # fmt: skip
def test_build_refuses(tmp_path, installed, changes, message):
    result = make(tmp_path, installed, **changes).run("build", "wrapping", "--cuda", "on")
    assert result.returncode == 1 and "\nhint: " in result.stderr
    assert f"wrapping: {message}" in result.stderr


DESCRIBED = [path for path in ROOT.glob("kernels/*/wrapped.json") if "wheel" in json.loads(path.read_text())]


@pytest.mark.parametrize("path", DESCRIBED, ids=lambda path: path.parent.name)
def test_lock_has_the_version_that_wrapped_json_records(path):
    described = json.loads(path.read_text())
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements/dev.in").read_text().splitlines()]
    packages = [line for line in lines if line and not line.startswith("-")]
    wanted = {r.name: str(r.specifier) for r in map(Requirement, packages)}
    assert wanted[described["wheel"]] == f"=={described['version']}"


def test_an_op_wraps_a_wheel():
    assert [path.parent.name for path in DESCRIBED] == ["paged_attention_flashinfer"]
