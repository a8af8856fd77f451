"""The variables that choose which locks .venv is made from, and the sets with vLLM."""

import re

import pytest

from tests.small_tree import write_sdist, write_wheel


def test_unknown_set_is_misuse(tree):
    status, _, errors = tree.devtool(PYXLA_SET="rocm")
    assert status == 2
    assert "expected PYXLA_SET=cpu, cuda13, vllm or vllm-cuda13, got 'rocm'" in errors and "hint:" in errors


@pytest.mark.parametrize(
    ("name", "torch", "lock"),
    [
        ("cpu", "2.9", "cpu"),
        ("cpu", "2.8", "cpu-torch2.8"),
        ("vllm", "2.8", "vllm"),
        ("vllm-cuda13", "2.9", "vllm-cuda13-torch2.9"),
    ],
)
def test_a_set_for_each_torch(tree, name, torch, lock):
    tree.lock(lock, write_wheel(tree.wheels, "tiny", "1.0"))
    _, _, errors = tree.devtool(PYXLA_SET=name, PYXLA_TORCH=torch)
    assert f"installing the locked wheels of {lock} and dev" in errors


def test_unknown_torch_is_misuse(tree):
    status, _, errors = tree.devtool(PYXLA_SET="vllm", PYXLA_TORCH="2.7")
    assert status == 2
    assert "expected PYXLA_TORCH=2.8 or 2.9, got '2.7'" in errors and "hint: unset PYXLA_TORCH" in errors


def test_a_set_with_vllm_builds_it_from_source(tree):
    """Without CUDA code, with the packages that are installed by then; the index has a wheel of it too."""
    wheel = write_wheel(tree.wheels, "vllm", "1.0")
    digest = re.search(r"--hash=\S+", wheel)[0]
    source = write_sdist(tree.wheels, "vllm", "1.0", "VLLM_TARGET_DEVICE")
    built = source.replace("    --hash", f"    {digest} \\\n    --hash")
    tree.lock("vllm-cuda13", write_wheel(tree.wheels, "tiny", "1.0"), built)
    seen, errors = tree.works(PYXLA_SET="vllm-cuda13")
    assert seen["installed"].items() >= {"tiny": "1.0", "vllm": "1.0+empty"}.items(), errors
    assert tree.works(PYXLA_SET="vllm-cuda13", PYXLA_PYTHON="/nonexistent")[1] == ""
    tree.lock("vllm-cuda13", write_wheel(tree.wheels, "tiny", "2.0"), built)
    seen, _ = tree.works(PYXLA_SET="vllm-cuda13")
    assert seen["installed"].items() >= {"tiny": "2.0", "vllm": "1.0+empty"}.items()
    # Another set has no use for it.
    assert "vllm" not in tree.works(PYXLA_SET="cpu")[0]["installed"]
