"""pyxla.export and pyxla.load_artifact: the file contains what the function computes, and nothing else is loaded."""

import json
import subprocess
import sys
import zipfile

import pytest
import torch
import torch_xla
import torch_xla.runtime

import pyxla
from pyxla import hlo, testing
from pyxla.testing.tolerance import compare
from pyxla.torch_ops.custom_op import find_op

DEVICE = torch_xla.device()
ON_CUDA = torch_xla.runtime.device_type() == "CUDA"
PLATFORM = "CUDA" if ON_CUDA else "Host"
add = torch.ops.xla_gpu.simple_add
norm = torch.ops.xla_gpu.rms_norm

PAGED = ["ragged-bf16", "window-7", "all-options", "f8-bf16", "lse-f32"]
# op -> cases, one for each form of call: attributes of each kind, operands that are
# absent, several results, float8, updates in place with and without a result, no elements. And implementations.
ROUND_TRIPS = {
    "simple_add": ["f32-3x5", "bf16-3x5", "f32-scalar", "f32-empty"],
    "rms_norm": ["bf16-5x1000", "f32-no-weight", "bf16-weight-f32", "f32-eps-0"],
    "rms_norm.triton": ["bf16-5x1000"],
    "fused_add_rms_norm": ["f32-3x5", "bf16-5x1000", "bf16-no-weight"],
    "rotary_embedding": ["bf16-neox", "f32-interleaved"],
    "rotary_embedding_inplace": ["bf16-neox", "f32-rot-dim-0"],
    "reshape_and_cache": ["bf16-to-itself", "bf16-to-f8-scaled"],
    "rotary_and_cache": ["bf16-neox", "bf16-to-f8-scaled"],
    "gelu_and_mul": ["f32-3x10", "bf16-3x10"],
    "paged_attention": PAGED,
    "paged_attention.flashinfer": ["ragged-bf16"],
    "paged_attention_lse": PAGED,
    "fused_decoder_layer": ["bf16-no-qkv"],
    "fused_decoder_layer_rotary": ["rotary-bf16-17x128"],
}


def round_trips():
    for op, names in ROUND_TRIPS.items():
        for case in testing.cases_of(find_op(op)):
            if case.name in names:
                yield pytest.param(op, case, id=f"{op}-{case.name}")


def to_xla(arguments):
    return {n: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}


def outputs(op, arguments, results):
    results = results if isinstance(results, (tuple, list)) else () if results is None else (results,)
    return [t.cpu() for t in (*(arguments[a.name] for a in op.schema.mutated), *results)]


def same_bits(got, want):
    return (
        len(got) == len(want) > 0
        and all(g.dtype == w.dtype and g.shape == w.shape for g, w in zip(got, want, strict=True))
        and all(
            torch.equal(g.flatten().view(torch.uint8), w.flatten().view(torch.uint8))
            for g, w in zip(got, want, strict=True)
        )
    )


@pytest.mark.parametrize(("name", "case"), list(round_trips()))
def test_round_trip(name, case, tmp_path):
    """With other values than at the export: bit for bit the op's own results, and correct against float64."""
    op, path = find_op(name), tmp_path / "f.pyxla"
    pyxla.export(lambda **arguments: op(**arguments), (), path, kwargs=case.arguments(0))
    artifact = pyxla.load_artifact(path)
    arguments = case.arguments(1)
    by_op, by_artifact = to_xla(arguments), to_xla(arguments)
    want = outputs(op, by_op, op(**by_op))
    inputs = {n: v for n, v in by_artifact.items() if isinstance(v, torch.Tensor)}
    got = outputs(op, inputs, artifact(**inputs))
    assert same_bits(got, want)
    for g, w in zip(got, testing.oracle(op, arguments), strict=True):
        compare(name, g, w, roundings=case.roundings_of(g, torch_xla.runtime.device_type()))
    is_constant = ON_CUDA and not any(w.numel() for w in want)  # torch_xla asks XLA for nothing then
    assert [call.op for call in artifact.manifest.custom_calls] == ([] if is_constant else [name])


def saved(tmp_path, fn, *args, **kwargs):
    path = tmp_path / "f.pyxla"
    pyxla.export(fn, args, path, kwargs=kwargs)
    return pyxla.load_artifact(path)


def test_structure_names_and_order(tmp_path):
    def fn(state, x, factor, *, bias):
        return {"sum": add(state["a"], state["list"][0], 0.5) * factor, "rest": (x + bias, None)}

    a, b, x, bias = (torch.full((2, 3), float(n)) for n in range(1, 5))
    artifact = saved(tmp_path, fn, {"a": a, "list": [b]}, x, 3, bias=bias)
    assert [t.name for t in artifact.manifest.inputs] == ["state.a", "state.list.0", "x", "bias"]
    assert [t.name for t in artifact.manifest.outputs] == ["result.sum", "result.rest.0"]
    assert repr(artifact) == (
        "<pyxla artifact f.pyxla(state.a: float32[2, 3], state.list.0: float32[2, 3], x: float32[2, 3], "
        "bias: float32[2, 3])>"
    )
    total, rest = artifact(a.to(DEVICE), b.to(DEVICE), x.to(DEVICE), bias=(10 * bias).to(DEVICE))
    assert torch.equal(total.cpu(), torch.full((2, 3), 6.0)) and torch.equal(rest.cpu(), torch.full((2, 3), 43.0))


def test_weights_of_a_module(tmp_path):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Linear(8, 4, bias=False)).bfloat16().to(DEVICE)
    x = torch.randn(3, 64).bfloat16()
    artifact = saved(tmp_path, module, x)
    want = module(x.to(DEVICE)).cpu()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert torch.equal(artifact(x.to(DEVICE)).cpu(), want)
    assert {(w.name, w.shape, w.dtype) for w in artifact.manifest.weights} == {
        ("0.weight", (8, 64), "bfloat16"),
        ("0.bias", (8,), "bfloat16"),
        ("1.weight", (4, 8), "bfloat16"),
    }


def test_equal_scalars_stay_two_inputs(tmp_path):
    """torch_xla keeps one buffer for equal scalars and would merge two inputs of the same value."""
    artifact = saved(tmp_path, lambda x, y: x - y, torch.tensor(2.0), torch.tensor(2.0))
    assert artifact(torch.tensor(5.0).to(DEVICE), torch.tensor(1.0).to(DEVICE)).item() == 4.0


def test_numbers_are_constants(tmp_path):
    artifact = saved(tmp_path, lambda x, y: (x * 2.5 + 7) / y, torch.ones(3), 3.0)
    assert artifact.manifest.weights == ()
    assert torch.equal(artifact(torch.full((3,), 0.8).to(DEVICE)).cpu(), torch.full((3,), 3.0))


def test_inputs_that_are_results_unused_or_views(tmp_path):
    artifact = saved(tmp_path, lambda x, unused, y: (x, x, y[0] * 2), torch.ones(3), torch.ones(5), torch.ones(2, 3))
    x, unused, y = torch.arange(3.0), torch.zeros(5), torch.arange(6.0).reshape(2, 3)
    first, second, third = artifact(x.to(DEVICE), unused.to(DEVICE), y.to(DEVICE))
    assert same_bits([first.cpu(), second.cpu(), third.cpu()], [x, x, y[0] * 2])


def test_update_through_a_view(tmp_path):
    def fn(x):
        x[0].add_(1)

    artifact = saved(tmp_path, fn, torch.zeros(2, 3))
    x = torch.zeros(2, 3).to(DEVICE)
    assert artifact(x) is None
    assert torch.equal(x.cpu(), torch.tensor([[1.0] * 3, [0.0] * 3]))


def copied(x, y):
    x.copy_(y)
    return y + 1


def swapped(x, y):
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


@pytest.mark.parametrize("fn", [copied, swapped])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_update_by_another_argument_as_it_is(tmp_path, fn, mode):
    """torch_xla computes nothing for `x.copy_(y)`: x then has y's data. Such an update must still be exported."""
    with mode():
        artifact = saved(tmp_path, fn, torch.zeros(3), torch.ones(3))
    of_fn = torch.arange(3.0), torch.arange(3.0) * 5
    on_xla = [t.to(DEVICE) for t in of_fn]
    result, want = artifact(*on_xla), fn(*of_fn)
    assert result is want if want is None else torch.equal(result.cpu(), want)
    assert same_bits([t.cpu() for t in on_xla], of_fn)


def test_gradients_inside(tmp_path):
    def fn(x, weight):
        return torch.autograd.grad(norm(x, weight).square().sum(), (x, weight))

    x, weight = torch.randn(4, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    got = saved(tmp_path, fn, x, weight)(x.detach().to(DEVICE), weight.detach().to(DEVICE))
    for g, w in zip(got, fn(x.double(), weight.double()), strict=True):
        torch.testing.assert_close(g.cpu().double(), w, rtol=1e-4, atol=1e-4)


def test_it_is_traced_and_compiled_once(tmp_path):
    artifact = saved(tmp_path, lambda x: norm(x, None), torch.randn(4, 16))
    counts = []
    for n in range(1, 4):
        got = artifact(torch.full((4, 16), float(n)).to(DEVICE)) + 1
        torch.testing.assert_close(got.cpu(), torch.full((4, 16), 2.0))
        counts.append(testing.compilations())
    assert counts[0] == counts[1] == counts[2]


def test_an_update_in_place_copies_nothing(tmp_path):
    op = find_op("fused_add_rms_norm")
    x, residual = torch.randn(5, 72), torch.randn(5, 72)
    artifact = saved(tmp_path, lambda x, residual: op(x, residual, None), x, residual)
    x, residual = x.to(DEVICE), residual.to(DEVICE)
    torch_xla.sync(wait=True)
    result = artifact(x, residual)
    marker = torch.zeros(1009, device=DEVICE)  # a graph of its own: XLA writes no module for a cached one
    with hlo.optimized_modules() as modules:
        torch_xla.sync(wait=True)
    assert marker.shape == (1009,) and result.shape == (5, 72)
    testing.check_in_place(op, modules, 1)


def test_the_same_function_gives_the_same_bytes(tmp_path):
    fn, x = (lambda x: norm(x, None) + 1), torch.randn(4, 16)
    for name in "ab":
        pyxla.export(fn, (x,), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_arguments_stay_as_they_are(tmp_path):
    x, y = torch.zeros(3), torch.zeros(3).to(DEVICE)
    saved(tmp_path, lambda x, y: (x.add_(1), y.add_(1))[0], x, y)
    assert torch.equal(x, torch.zeros(3)) and torch.equal(y.cpu(), torch.zeros(3))


def test_it_is_a_zip_archive_with_stored_members(tmp_path):
    artifact = saved(tmp_path, lambda x: norm(x, None) * torch.full((16,), 2.0).to(DEVICE), torch.randn(4, 16))
    with zipfile.ZipFile(artifact.path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["module.stablehlo", "weights/0", "manifest.json"]
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        assert archive.read("module.stablehlo").startswith(b"ML\xefR\rStableHLO_v")
        assert torch.frombuffer(bytearray(archive.read("weights/0")), dtype=torch.float32).tolist() == [2.0] * 16
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["format"] == 1 and manifest["platform"] == PLATFORM
    (call,) = manifest["custom_calls"]
    assert call["schema"] == "(Tensor x, Tensor? weight, float eps=1e-06) -> Tensor"
    assert call["target"] == "xla_gpu_rms_norm" and len(call["sha256"]) == len(call["source_digest"]) == 64


def test_in_a_fresh_process(tmp_path):
    weight = torch.randn(64).bfloat16().to(DEVICE)
    x = torch.randn(3, 64).bfloat16()
    artifact = saved(tmp_path, lambda x: norm(x, weight, 1e-3), x)
    want = artifact(x.to(DEVICE)).cpu().view(torch.int16).tolist()
    script = (
        "import json, sys, torch, torch_xla, pyxla\n"
        "x = torch.tensor(json.loads(sys.argv[2]), dtype=torch.int16).view(torch.bfloat16).to(torch_xla.device())\n"
        "print(json.dumps(pyxla.load_artifact(sys.argv[1])(x).cpu().view(torch.int16).tolist()))"
    )
    command = [sys.executable, "-P", "-c", script, artifact.path, json.dumps(x.view(torch.int16).tolist())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == want
