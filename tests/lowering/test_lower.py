"""A call's arguments reach the handler, and its results reach the caller: the probe ops, on XLA's CPU."""

import math
import os
from pathlib import Path

import pytest
import torch
import torch_xla
import torch_xla.runtime

from pyxla import hlo
from pyxla.errors import PyxlaError
from pyxla.hlo import text as hlo_text
from pyxla.lowering.lower import Lowering
from tests.probe import probe_ops as ops

pytestmark = pytest.mark.usefixtures("probe_library")
DEVICE = torch_xla.device()


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Dynamo counts recompilations per code object, and all ops share CustomOp.__call__."""
    torch._dynamo.reset()


def attributes(**changes):
    values = {
        "integer": 7,
        "number": 0.1,
        "flag": True,
        "string": "plain",
        "integers": [1, -2],
        "numbers": [0.5],
        "maybe_integer": 3,
        "maybe_number": 0.25,
    } | changes
    return values


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"integer": -(2**53), "flag": False},
        {"integers": [], "numbers": []},
        {"integers": [3, 3, 3], "numbers": [0.5, 0.5]},  # MLIR writes equal elements as one
        {"maybe_integer": None, "maybe_number": None},
        {"maybe_integer": 0, "maybe_number": 0.0},
        {"number": math.inf, "numbers": [-math.inf, math.nan, 1e-310]},
        {"string": 'quote " backslash \\ newline \n é %d {}'},
        {"string": ""},
    ],
    ids=str,
)
@pytest.mark.parametrize("compiled", [False, True])
def test_attributes_arrive(changes, compiled):
    values = attributes(**changes)
    call = torch.compile(ops.probe_attributes, backend="openxla", fullgraph=True) if compiled else ops.probe_attributes
    want = ops.probe_attributes.reference(torch.zeros(1), **values)
    got = call(torch.zeros(1, device=DEVICE), **values)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=0, atol=0, equal_nan=True)


def test_float_attribute_keeps_the_sign_of_zero():
    """0.0 == -0.0, so a cache keyed only by value returns the first call's result."""
    for number in (0.0, -0.0, 0.0):
        got = ops.probe_attributes(torch.zeros(1, device=DEVICE), **attributes(number=number))[0].cpu()
        assert math.copysign(1.0, got[1].item()) == math.copysign(1.0, number)


@pytest.mark.parametrize("name", ["number", "maybe_number"])
def test_nan_is_lowered_once(name, monkeypatch):
    """NaN equals nothing, so each call could be lowered again and its computation never freed."""
    lowered, lower = [], Lowering.custom_call
    monkeypatch.setattr(Lowering, "custom_call", lambda self, arguments: lowered.append(1) or lower(self, arguments))
    for _ in range(3):
        values = attributes(integer=60 + len(name), **{name: float("nan")})
        got = ops.probe_attributes(torch.zeros(1, device=DEVICE), **values)
    assert len(lowered) == 1
    assert any(tensor.cpu().isnan().any() for tensor in got)


def test_changed_attributes_change_the_result():
    got = [ops.probe_attributes(torch.zeros(1, device=DEVICE), **attributes(integer=i))[0][0].item() for i in (1, 2, 1)]
    assert got == [1.0, 2.0, 1.0]


@pytest.mark.parametrize(
    "changes",
    [
        {"integer": 2.7},
        {"integer": 2**63},
        {"integers": [1, 1.5]},
        {"integers": [-(2**63) - 1]},
        {"maybe_integer": 1.9},
        {"flag": "no"},
        {"number": "3"},
        {"numbers": [None]},
        {"string": 3},
    ],
    ids=str,
)
def test_attribute_of_another_type_is_refused(changes):
    """The op object bypasses torch's dispatcher and must not convert 2.7 to the int 2, or 2**63 to -(2**63)."""
    (name,) = changes
    for call in (ops.probe_attributes, torch.ops.xla_gpu.probe_attributes):
        with pytest.raises(RuntimeError, match=f"Expected a value of type .* for argument '{name}'"):
            call(torch.zeros(1, device=DEVICE), **attributes(**changes))


@pytest.mark.parametrize(
    ("given", "want"), [({"flag": 0}, {"flag": False}), ({"number": 2}, {"number": 2.0}), ({"integers": (5, 6)}, {})]
)
def test_attribute_that_torch_converts(given, want):
    want = ops.probe_attributes.reference(torch.zeros(1), **attributes(**given | want))
    got = ops.probe_attributes(torch.zeros(1, device=DEVICE), **attributes(**given))
    assert got[0].cpu().tolist() == want[0].tolist()


@pytest.mark.parametrize("with_a", [False, True])
@pytest.mark.parametrize("with_b", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_optional_tensors(with_a, with_b, compiled):
    call = torch.compile(ops.probe_optionals, backend="openxla", fullgraph=True) if compiled else ops.probe_optionals
    a = torch.tensor([2.0], device=DEVICE) if with_a else None
    b = torch.tensor([3.0], device=DEVICE) if with_b else None
    got = call(a, torch.ones(2, device=DEVICE), b)
    assert got.cpu().tolist() == [1.0 + 2 * with_a + 30 * with_b] * 2


@pytest.mark.parametrize("call", [ops.probe_names, torch.ops.xla_gpu.probe_names], ids=["op object", "torch.ops"])
def test_argument_named_as_a_name_of_our_own(call):
    """A call's keywords are part of its key: an author's `key` or `type` must not be mistaken for our own."""
    ones = torch.ones(2, device=DEVICE)
    for number in (0.0, 2.0):
        assert call(ones, 3 * ones, number, tuple=[5]).cpu().tolist() == [6.0 + 3 * number] * 2


def test_zero_operands_and_result_shape_in_the_cache_key():
    for n, start in ((3, 0), (5, 0), (3, 4)):
        got = ops.probe_iota(n, start, DEVICE)
        assert got.device.type == "xla"
        assert got.cpu().tolist() == [float(start + i) for i in range(n)]
    assert ops.probe_iota(2, 1, torch.device("cpu")).tolist() == [1.0, 2.0]
    text = hlo.lowered([ops.probe_iota(4, 9, DEVICE)])
    (call,) = hlo_text.custom_calls(text, "xla_gpu_probe_iota")
    assert call.operands == () and "custom-call()" in text


def test_zero_operands_compiled():
    compiled = torch.compile(lambda x: x + ops.probe_iota(3, 5, x.device), backend="openxla", fullgraph=True)
    assert compiled(torch.ones(3, device=DEVICE)).cpu().tolist() == [6.0, 7.0, 8.0]


@pytest.mark.parametrize("compiled", [False, True])
def test_workspace_is_no_result(compiled):
    call = torch.compile(ops.probe_workspace, backend="openxla", fullgraph=True) if compiled else ops.probe_workspace
    result = call(torch.zeros(3, device=DEVICE), 5)
    assert result.shape == (1,)
    assert result.item() == 0.0


def test_workspace_on_cuda_is_part_of_the_call_and_of_no_result(monkeypatch):
    from pyxla.lowering import lower

    monkeypatch.setattr(lower, "platform", lambda: "CUDA")
    module = ops.probe_workspace._lowering.custom_call((torch.zeros(3, device=DEVICE), 5)).module()
    assert "-> (tensor<1xf32>, tensor<15xui8>)" in module
    assert "func.func @main(%a0: tensor<3xf32>) -> (tensor<1xf32>) {" in module
    assert "return %r#0 : tensor<1xf32>" in module


@pytest.mark.parametrize("grain", [1, 3, 64, 10**6])
def test_parallel_loop_visits_each_index_once(grain):
    got = ops.probe_parallel_count(torch.zeros(1003, device=DEVICE), grain).cpu()
    assert bool((got == 1).all())


def test_opcheck():
    torch.library.opcheck(ops.probe_accumulate.overload, (torch.ones(3), torch.ones(3)))
    torch.library.opcheck(ops.probe_increment.overload, (torch.ones(3), 2.0))
    torch.library.opcheck(ops.probe_optionals.overload, (None, torch.ones(3), torch.ones(1)))
    torch.library.opcheck(ops.probe_attributes.overload, (torch.ones(1),), attributes())


def test_results_on_cpu_are_row_major():
    """The reference keeps its operands' strides and the fake function says row-major: torch.compile would fail."""
    from pyxla_kernels.simple_add.simple_add import simple_add

    transposed = torch.arange(6.0).reshape(2, 3).t()
    assert simple_add(transposed, transposed).stride() == (2, 1)
    compiled = torch.compile(lambda x: simple_add(x, x).view(-1), backend="aot_eager", fullgraph=True)
    assert compiled(transposed).tolist() == [0, 6, 2, 8, 4, 10]


def test_error_from_the_handler():
    """XLA's exception arrives, and pyxla.sync removes the second one, which torch_xla keeps for the next operation."""
    from pyxla import sync

    bad = torch.tensor([-1.0], device=DEVICE)
    torch_xla.sync(wait=True)
    result = ops.probe_fail(bad)
    with pytest.raises(PyxlaError, match="probe_fail: x: expected a first element that is not negative, got -1"):
        sync()
    del result
    assert (torch.ones(2, device=DEVICE) + 1).cpu().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.float8_e4m3fn])
def test_await_uploads_takes_every_dtype(dtype):
    from pyxla.lowering.uploads import await_uploads

    tensor = torch.zeros(1 << 20).to(dtype).to(DEVICE)
    pending = tensor.to(torch.float32) + 1
    await_uploads([tensor, pending])
    assert pending.cpu().min().item() == 1.0


@pytest.mark.skipif(torch_xla.runtime.device_type() != "CPU", reason="waits for no upload: not XLA's CPU")
def test_buffers_that_were_awaited_are_freed():
    """Unconsumed exports would keep each operand's buffer: a decoder in direct mode would leak a cache per step."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def calls(count: int) -> None:
        for _ in range(count):
            ops.probe_fail(torch.ones(4 << 20).to(DEVICE)).cpu()

    # The allocator keeps more memory over the first 100 calls or so, up to 250 MiB, and no more in the next 1,100.
    calls(40)
    before = resident_bytes()
    calls(40)
    # Half of what 40 operands of 16 MiB would take.
    assert resident_bytes() - before < 320 << 20


def test_error_from_the_handler_right_after_a_large_upload():
    """XLA copies large inputs in the background and would abort the process if a handler failed meanwhile."""
    from pyxla import drain_errors

    for _ in range(20):
        bad = torch.full((1 << 20,), -1.0).to(DEVICE)
        with pytest.raises(RuntimeError, match="probe_fail: x: expected a first element that is not negative"):
            ops.probe_fail(bad).cpu()
        drain_errors()


@pytest.mark.parametrize("device", ["cpu", DEVICE], ids=["cpu", "xla"])
def test_under_vmap(device):
    """An op object must not treat batched tensors as plain ones, which torch_xla rejects with a stack trace."""
    x = torch.arange(6.0).reshape(2, 3).to(device)
    # One row at a time: 10 x + x[0].
    assert torch.vmap(ops.probe_optionals)(x, x * 10).cpu().tolist() == [[0, 10, 20], [33, 43, 53]]
    torch.vmap(lambda row: ops.probe_increment(row, 1.0), out_dims=None)(x)
    assert x.cpu().tolist() == [[1, 2, 3], [4, 5, 6]]


def test_missing_argument():
    with pytest.raises(RuntimeError, match="missing value for argument 'update'"):
        torch.ops.xla_gpu.probe_accumulate(torch.ones(1))


def test_tensors_on_two_devices():
    """Before and after the first call with these shapes, because a computation's key does not include devices."""
    on_xla, on_cpu = torch.ones(1, device=DEVICE), torch.ones(1)
    for _ in range(2):
        with pytest.raises(
            PyxlaError, match="probe_optionals: b: expected a tensor on xla, as the others are, got cpu"
        ):
            ops.probe_optionals(None, on_xla, on_cpu)
        assert ops.probe_optionals(None, on_xla, on_xla).cpu().tolist() == [11.0]


@pytest.mark.parametrize("use", range(2))
def test_compilations_leave_nothing_in_the_backend(use):
    """torch wraps the backend's backward compiler at each use; over all tests the nesting would become too deep."""
    from torch._dynamo.backends.torchxla import openxla

    assert openxla.kwargs.get("bw_compiler") is None
    torch._dynamo.reset()
    x = torch.ones(2, device=torch_xla.device(), requires_grad=True)
    torch.compile(lambda x: x * 2, backend="openxla")(x).sum().backward()
    assert openxla.kwargs["bw_compiler"] is not None
