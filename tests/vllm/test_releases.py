"""The releases of vLLM: which ones there are, what another one is told, and what differs between them."""

import importlib.metadata
import re
from types import SimpleNamespace

import numpy as np
import pytest

import pyxla
from pyxla.vllm import releases
from tests.conftest import ROOT
from tests.vllm.engine import MARKS
from tests.vllm.test_plugin import run


@pytest.fixture
def installed(monkeypatch):
    """Pretends that a release of vLLM is installed, and one of torch."""

    def install(vllm, torch="2.9.1"):
        version = importlib.metadata.version
        monkeypatch.setattr(importlib.metadata, "version", lambda name: vllm if name == "vllm" else version(name))
        monkeypatch.setattr(releases, "installed_versions", lambda: (torch, "none"))
        releases.release.cache_clear()

    yield install
    releases.release.cache_clear()


def test_each_has_a_lock_with_its_torch():
    locked = {}
    for name in ("vllm", "vllm-cuda13", "vllm-torch2.9", "vllm-cuda13-torch2.9"):
        pins = dict(re.findall(r"^(vllm|torch)==(\S+)", (ROOT / f"requirements/{name}.txt").read_text(), re.M))
        locked.setdefault(pins["vllm"], set()).add(pins["torch"].rpartition(".")[0])
    assert locked == {release: {torch} for release, torch in releases.RELEASES.items()}


@pytest.mark.parametrize("found", ["0.11.2", "0.11.2+empty", "0.11.0+cu128"])
def test_a_build_may_add_to_the_version(installed, found):
    installed(found)
    assert releases.release() == found.partition("+")[0]


@pytest.mark.parametrize(("torch", "fitting"), [("2.9.0", "0.11.2"), ("2.8.0", "0.11.0"), ("2.10.0", "0.11.2")])
def test_another_release_is_an_error(installed, torch, fitting):
    installed("0.12.0", torch)
    with pytest.raises(pyxla.PyxlaError) as caught:
        releases.release()
    tried = "vLLM 0.11.2 (torch 2.9) or vLLM 0.11.0 (torch 2.8), the ones that were tried"
    assert caught.value.message == f"vllm: release: expected {tried}, got vLLM 0.12.0"
    assert caught.value.hint == f"pip install vllm=={fitting}"


@pytest.mark.skipif(MARKS[0].args[0], reason=MARKS[0].kwargs["reason"])
def test_vllm_reports_it_and_takes_no_other_platform():
    """A plugin that fails is passed over, a platform that fails is not."""
    code = """
import importlib.metadata as metadata
version = metadata.version
metadata.version = lambda name: "0.12.0" if name == "vllm" else version(name)
try:
    from vllm.platforms import current_platform
    print(current_platform.device_type)
except Exception as error:
    print(error)
"""
    assert "vllm: release: expected vLLM 0.11.2" in run(code, PJRT_DEVICE="CPU")


MASKS = np.array([[1], [2]], dtype=np.int32)


@pytest.mark.parametrize(
    ("vllm", "names"), [("0.11.0", {"b": 7, "a": 3}), ("0.11.2", ["a", "b"])], ids=["numbers", "in order"]
)
def test_each_request_gets_the_mask_of_its_grammar(installed, vllm, names):
    installed(vllm)
    planned = SimpleNamespace(structured_output_request_ids=names, grammar_bitmask=MASKS)
    assert {name: mask.tolist() for name, mask in releases.grammar_masks(planned).items()} == {"a": [1], "b": [2]}


def test_steps_without_grammars(installed):
    installed("0.11.0")
    assert releases.grammar_masks(SimpleNamespace(structured_output_request_ids={}, grammar_bitmask=None)) == {}
    installed("0.11.2")
    assert releases.grammar_masks(None) == {}


@pytest.mark.parametrize(
    ("vllm", "cached"),
    [
        ("0.11.0", SimpleNamespace(req_ids=["a", "b"], resumed_from_preemption=[False, True])),
        ("0.11.2", SimpleNamespace(req_ids=["a", "b"], resumed_req_ids={"b"})),
    ],
)
def test_resumed_requests(installed, vllm, cached):
    installed(vllm)
    assert releases.resumed(cached) == {"b"}
