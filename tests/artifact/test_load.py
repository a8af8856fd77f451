"""Loading and calling an exported function: a mismatch is rejected, with the reason."""

import dataclasses

import pytest
import torch
import torch_xla
import torch_xla.runtime

import pyxla
from pyxla.artifact.archive import ArtifactFile, write_artifact
from pyxla.artifact.manifest import Manifest
from pyxla.errors import ArgumentError, ArtifactError, DefinitionError, LibraryError

DEVICE = torch_xla.device()
X = torch.ones(2, 3)
add = torch.ops.xla_gpu.simple_add
norm = torch.ops.xla_gpu.rms_norm


def saved(tmp_path, fn, *args):
    path = tmp_path / "f.pyxla"
    pyxla.export(fn, args, path)
    return pyxla.load_artifact(path)


def test_wrong_inputs(tmp_path):
    artifact = saved(tmp_path, lambda x, y: add(x, y), X, X)
    good = X.to(DEVICE)
    for args, kwargs, message in [
        ((good,), {}, "inputs: expected x, y, got 1 in order"),
        ((good, good, good), {}, "inputs: expected x, y, got 3 in order"),
        ((good,), {"x": good}, "inputs: expected x, y, got 1 in order, x"),
        ((), {"x": good, "z": good}, "inputs: expected x, y, got x, z"),
        ((), {}, "inputs: expected x, y, got none"),
        ((good, 3), {}, "y: expected a tensor float32[2, 3], got int"),
        ((good, good[0]), {}, "y: expected float32[2, 3], got float32[3]"),
        ((good, good.half()), {}, "y: expected float32[2, 3], got float16[2, 3]"),
        ((X, good), {}, "x: expected a tensor on xla, got cpu"),
    ]:
        with pytest.raises(ArgumentError) as caught:
            artifact(*args, **kwargs)
        assert caught.value.message == f"artifact: {message}"


def rewritten(path, change=lambda call: {}, **changes):
    """The artifact with other values in its manifest, and correct digests."""
    file = ArtifactFile.open(path)
    members = {name: file.member(name) for name in file.manifest.members}
    calls = tuple(dataclasses.replace(call, **change(call)) for call in file.manifest.custom_calls)
    manifest: Manifest = dataclasses.replace(file.manifest, **({"custom_calls": calls} | changes))
    write_artifact(path, manifest, {name: lambda c=content: c for name, content in members.items()})
    return path


@pytest.fixture
def normed(tmp_path):
    return saved(tmp_path, lambda x: norm(x, None), torch.randn(4, 16)).path


def test_another_schema(normed):
    rewritten(normed, lambda call: {"schema": "(Tensor x) -> Tensor"})
    with pytest.raises(ArtifactError) as caught:
        pyxla.load_artifact(normed)
    assert caught.value.message == (
        "artifact: rms_norm: expected xla_gpu_rms_norm(Tensor x) -> Tensor (f.pyxla), "
        "got xla_gpu_rms_norm(Tensor x, Tensor? weight, float eps=1e-06) -> Tensor"
    )


def test_another_source_digest_is_a_warning(normed):
    rewritten(normed, lambda call: {"source_digest": "0" * 64})
    message = r"artifact: rms_norm: expected source digest 000000000000 \(f.pyxla\), got [0-9a-f]{12} here"
    with pytest.warns(UserWarning, match=message) as caught:
        artifact = pyxla.load_artifact(normed)
    assert caught[0].filename == __file__
    assert artifact(torch.ones(4, 16).to(DEVICE)).shape == (4, 16)
    with pytest.raises(ArtifactError, match=message):
        pyxla.load_artifact(normed, strict=True)


def test_an_op_that_is_not_there(normed):
    rewritten(normed, lambda call: {"op": "gone", "target": "xla_gpu_gone"})
    with pytest.raises(DefinitionError, match="gone: op: expected one that is declared, got "):
        pyxla.load_artifact(normed)


def test_a_library_that_is_missing(normed, monkeypatch):
    monkeypatch.setattr("pyxla.library.register._registered", {})
    monkeypatch.setattr("pyxla.library.find.library_path", lambda *_: None)
    monkeypatch.setattr("pyxla.library.find.preloaded_libraries", lambda: ())
    with pytest.raises(LibraryError, match=r"rms_norm: library: expected librms_norm.so, got none preloaded"):
        pyxla.load_artifact(normed)


def test_a_workspace_of_another_platform(normed):
    here, other = ("CUDA", "Host") if torch_xla.runtime.device_type() == "CUDA" else ("Host", "CUDA")
    rewritten(normed, lambda call: {"workspace": True}, platform=other)
    with pytest.raises(ArtifactError) as caught:
        pyxla.load_artifact(normed)
    assert caught.value.message == f"artifact: rms_norm: expected {other}, whose workspace f.pyxla holds, got {here}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: {"inputs": (dataclasses.replace(m.inputs[0], shape=(4, 17)),)}, "parameters ['f32[4,17]']"),
        (lambda m: {"outputs": (dataclasses.replace(m.outputs[0], dtype="int32"),)}, "results ['s32[4,16]']"),
        (lambda m: {"custom_calls": ()}, "custom calls []"),
        (lambda m: {"parameters": ()}, "parameters []"),
    ],
    ids=["parameters", "results", "custom-calls", "none"],
)
def test_a_manifest_of_another_module(normed, change, message):
    rewritten(normed, **change(ArtifactFile.open(normed).manifest))
    with pytest.raises(ArtifactError) as caught:
        pyxla.load_artifact(normed)
    assert caught.value.message.startswith(f"artifact: module.stablehlo: expected {message} (manifest.json), got ")


@pytest.mark.parametrize("module", [b"", b"foreign", "short"], ids=["empty", "foreign", "short"])
def test_a_module_that_is_none(normed, module):
    file = ArtifactFile.open(normed)
    content = file.member("module.stablehlo")[:100] if module == "short" else module
    write_artifact(normed, file.manifest, {"module.stablehlo": lambda: content})
    with pytest.raises(ArtifactError, match=r"artifact: module.stablehlo: expected "):
        pyxla.load_artifact(normed)


def test_a_weight_of_another_size(tmp_path):
    weight = torch.ones(16).to(DEVICE)
    path = saved(tmp_path, lambda x: norm(x, weight), torch.randn(4, 16)).path
    file = ArtifactFile.open(path)
    members = {"module.stablehlo": file.member("module.stablehlo"), "weights/0": bytes(60)}
    write_artifact(path, file.manifest, {name: lambda c=content: c for name, content in members.items()})
    with pytest.raises(ArtifactError) as caught:
        pyxla.load_artifact(path)
    assert caught.value.message == "artifact: weight constant.0: expected 64 bytes for float32[16], got 60"
