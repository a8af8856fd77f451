"""Raw calls: a handler called through ctypes gets the same arguments as from XLA. On the CPU, with probe handlers."""

import math

import pytest
import torch
import torch_xla
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels.rms_norm.rms_norm import rms_norm

from pyxla.errors import ArgumentError, LibraryError, PyxlaError
from pyxla.testing import direct_call
from pyxla.testing.device_memory import call_raw
from tests.lowering.test_lower import attributes
from tests.probe import probe_ops as ops


@pytest.fixture
def call(probe_library):
    def call(op, arguments: dict, results: tuple) -> tuple:
        direct_call.prepare(op, arguments, results, "Host", library=probe_library)()
        return results

    return call


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"integers": [], "numbers": [], "string": ""},
        {"maybe_integer": None, "maybe_number": None, "flag": False},
        {"number": math.inf, "numbers": [-math.inf, math.nan, 1e-310], "integer": -(2**53)},
        {"string": 'quote " newline \n é'},
    ],
    ids=str,
)
def test_attributes_arrive(call, changes):
    arguments = {"x": torch.zeros(1)} | attributes(**changes)
    want = ops.probe_attributes.reference(**arguments)
    got = call(ops.probe_attributes, arguments, tuple(torch.empty_like(t) for t in want))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("with_a", [False, True])
@pytest.mark.parametrize("with_b", [False, True])
def test_optional_tensors(call, with_a, with_b):
    arguments = {"a": torch.tensor([2.0]) if with_a else None, "x": torch.ones(2)}
    arguments |= {"b": torch.tensor([3.0])} if with_b else {}
    (got,) = call(ops.probe_optionals, arguments, (torch.empty(2),))
    assert got.tolist() == [1.0 + 2 * with_a + 30 * with_b] * 2


def test_in_place(call):
    cache = torch.ones(4)
    (total,) = call(ops.probe_accumulate, {"cache": cache, "update": torch.arange(4.0)}, (torch.empty(1),))
    assert cache.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert total.item() == 10.0


@pytest.mark.parametrize("grain", [1, 64])
def test_loop_over_threads(call, grain):
    (got,) = call(ops.probe_parallel_count, {"x": torch.zeros(1003), "grain": grain}, (torch.empty(1003).int(),))
    assert bool((got == 1).all())


def test_workspace_is_there_and_empty_on_the_cpu(call):
    (got,) = call(ops.probe_workspace, {"x": torch.zeros(3), "size": 5}, (torch.empty(1),))
    assert got.item() == 0.0
    assert ops.probe_workspace.workspace_bytes((torch.zeros(3), 5), "CUDA") == 15


def test_a_call_can_be_made_again(probe_library):
    cache = torch.zeros(3)
    again = direct_call.prepare(ops.probe_increment, {"cache": cache, "by": 1.5}, (), "Host", library=probe_library)
    for _ in range(3):
        again()
    assert cache.tolist() == [4.5] * 3


def test_error_of_the_handler(probe_library):
    x = torch.ones(2)
    failing = direct_call.prepare(ops.probe_fail, {"x": x}, (torch.empty(2),), "Host", library=probe_library)
    failing()
    x[0] = -1
    for _ in range(2):
        with pytest.raises(PyxlaError, match=r"^probe_fail: x: expected a first element that is not negative, got -1$"):
            failing()
    x[0] = 1
    failing()


def test_what_the_op_does_not_take(probe_library):
    good = {"x": torch.ones(2, 8), "weight": None, "eps": 1e-6}
    out = torch.empty(2, 8)
    for changes, results, message in (
        ({"x": torch.ones(8, 2).t()}, (out,), r"rms_norm: x: expected a contiguous tensor, got strides \(1, 2\)"),
        (
            {"x": torch.ones(2, 8, device="meta")},
            (out,),
            "rms_norm: x: expected a tensor on cpu, whose memory a handler for Host takes, got meta",
        ),
        ({}, (out.to(torch_xla.device()),), "rms_norm: result 0: expected a tensor on cpu, whose memory .* got xla:0"),
        ({"epsilon": 1.0}, (out,), "rms_norm: arguments: expected x, weight, eps, got x, weight, eps, epsilon"),
        ({"x": torch.ones(2, 8).int()}, (out,), "rms_norm: x: expected dtype float32 or bfloat16 or float16, got int"),
        ({}, (), "rms_norm: results: expected 1 results, got 0"),
        ({}, (torch.empty(8, 2),), r"rms_norm: result 0: expected \(2, 8\) of torch.float32, got \(8, 2\) of"),
        ({}, (out.half(),), r"rms_norm: result 0: expected .* torch.float32, got \(2, 8\) of torch.float16"),
    ):
        with pytest.raises(ArgumentError, match=message):
            direct_call.prepare(rms_norm, good | changes, results, "Host")
    with pytest.raises(LibraryError, match="rms_norm: target: expected xla_gpu_rms_norm on Host, got xla_gpu_probe_"):
        direct_call.prepare(rms_norm, good, (out,), "Host", library=probe_library)


@pytest.mark.parametrize("call", [call_raw, lambda op, given, where: direct_call.prepare(op, given, (), where)])
@pytest.mark.parametrize("given", [{}, {"weight": None, "eps": 1.0}, {"x": torch.ones(2, 8), "weight": None, "to": 3}])
def test_missing_and_unknown_arguments(call, given):
    """A missing argument must not be a KeyError, and an unknown one must not be dropped."""
    message = f"rms_norm: arguments: expected x, weight, eps, got {', '.join(given) or 'none'}"
    with pytest.raises(ArgumentError) as caught:
        call(rms_norm, given, "Host")
    assert caught.value.message == message


def test_workspace_of_a_call_on_buffers(probe_library):
    x, out = torch.zeros(3), torch.empty(1)
    buffers = [direct_call.Buffer(t.data_ptr(), tuple(t.shape), t.dtype, t) for t in (x, out)]

    def prepare(**workspace):
        arguments = {"x": buffers[0], "size": 5}
        return direct_call.prepare(
            ops.probe_workspace, arguments, buffers[1:], "Host", library=probe_library, **workspace
        )

    with pytest.raises(ArgumentError, match=r"^probe_workspace: workspace: expected 0 bytes of memory, got none$"):
        prepare()
    prepare(workspace=torch.empty(0, dtype=torch.uint8))()
    assert out.item() == 0.0


def test_tensors_on_xla_are_copied_to_the_handler():
    x = torch.randn(2, 8)
    _, (got,) = call_raw(rms_norm, {"x": x.to(torch_xla.device()), "weight": None}, "Host")
    torch.testing.assert_close(got, rms_norm.reference(x, None))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.sampled_from([torch.float32, torch.bfloat16]))
def test_any_shape_and_strides(shape, dtype):
    x = torch.randn(shape[::-1]).to(dtype).permute(*reversed(range(len(shape))))
    _, (got,) = call_raw(rms_norm, {"x": x, "weight": None, "eps": 1e-6}, "Host")
    torch.testing.assert_close(got, rms_norm.reference(x, None, 1e-6))
