"""Ops that update their arguments: the probe ops, on XLA, lazily traced and compiled."""

import pytest
import torch
import torch_xla
from torch._dynamo.exc import BackendCompilerFailed

import pyxla
from pyxla import Implementation, hlo, testing, use_implementation
from pyxla.errors import DefinitionError
from pyxla.hlo.text import custom_calls
from tests.probe import probe_ops as ops

pytestmark = pytest.mark.usefixtures("probe_library")
DEVICE = torch_xla.device()


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Dynamo counts recompilations per code object, and all ops share CustomOp.__call__."""
    torch._dynamo.reset()


@pytest.mark.parametrize("size", [4, 1024])
def test_lazily_without_a_copy(size):
    cache, update = torch.ones(size, device=DEVICE), torch.arange(float(size), device=DEVICE)
    torch_xla.sync(wait=True)
    with hlo.optimized_modules() as modules:
        total = ops.probe_accumulate(cache, update)
        torch_xla.sync(wait=True)
    testing.check_in_place(ops.probe_accumulate, modules, count=1)
    assert cache.cpu().tolist() == [1.0 + i for i in range(size)]
    assert total.item() == cache.cpu().sum().item()


def test_compiled_without_a_copy():
    compiled = torch.compile(lambda c, u: ops.probe_accumulate(c, u * 2), backend="openxla", fullgraph=True)
    cache, update = torch.ones(6, device=DEVICE), torch.ones(6, device=DEVICE)
    torch_xla.sync(wait=True)
    with hlo.optimized_modules() as modules:
        for step in range(1, 4):
            total = compiled(cache, update)
            torch_xla.sync(wait=True)
            assert cache.cpu().tolist() == [1.0 + 2 * step] * 6
            assert total.item() == 6 * (1.0 + 2 * step)
    testing.check_in_place(ops.probe_accumulate, modules, count=1)


@pytest.mark.filterwarnings("ignore:Found tensor with shape")  # torch_xla says that it moves CPU tensors
def test_without_results():
    cache = torch.zeros(3, device=DEVICE)
    assert ops.probe_increment(cache, 1.5) is None
    ops.probe_increment(cache, 2.0)
    assert cache.cpu().tolist() == [3.5] * 3
    compiled = torch.compile(lambda c: ops.probe_increment(c, 1.0), backend="openxla", fullgraph=True)
    compiled(cache)
    assert cache.cpu().tolist() == [4.5] * 3
    on_cpu = torch.zeros(3)
    ops.probe_increment(on_cpu, 1.5)
    compiled(on_cpu)
    assert on_cpu.tolist() == [2.5] * 3


def test_leaves_other_tensors_alone():
    """Tensors that still need the old buffer: a pending clone, a pending sum, and a tensor that shares the buffer."""
    cache = torch.ones(3, device=DEVICE)
    torch_xla.sync(wait=True)
    clone, pending, shared = cache.clone(), cache + 1, cache.detach()
    ops.probe_increment(cache, 5.0)
    assert clone.cpu().tolist() == [1.0] * 3
    assert pending.cpu().tolist() == [2.0] * 3
    assert cache.cpu().tolist() == [6.0] * 3
    assert shared.cpu().tolist() == [6.0] * 3


def test_on_a_slice():
    cache = torch.zeros(4, 3, device=DEVICE)
    ops.probe_increment(cache[1:3, ::2], 1.0)
    assert cache.cpu().tolist() == [[0, 0, 0], [1, 0, 1], [1, 0, 1], [0, 0, 0]]


CALLS = {
    "op object": ops.probe_accumulate,
    "torch.ops": torch.ops.xla_gpu.probe_accumulate,
    "compiled": torch.compile(lambda c, u: ops.probe_accumulate(c, u), backend="openxla", fullgraph=True),
}
every_way = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


# Dynamo of torch 2.9 looks at the `grad` of every argument, which warns.
asks_for_grad = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@asks_for_grad
@every_way
def test_backward_through_it(call):
    """There is no gradient: if the update counted as a constant, tensors before it would silently get none."""
    weight = torch.ones(3, device=DEVICE, requires_grad=True)
    with pytest.raises((DefinitionError, BackendCompilerFailed)) as caught:
        total = call(torch.zeros(3, device=DEVICE), weight * 2)
        (total + weight.sum()).sum().backward()
    expected = "expected none, as the op works in place, got a backward pass through it"
    assert f"probe_accumulate: gradient: {expected}" in str(caught.value)
    assert weight.grad is None


@every_way
def test_beside_what_is_trained(call):
    """The call works if no argument needs a gradient, or if gradients are off."""
    weight = torch.ones(3, device=DEVICE, requires_grad=True)
    cache = torch.zeros(3, device=DEVICE)
    for update in (weight.detach(), torch.ones(3, device=DEVICE)):
        assert not call(cache, update).requires_grad
    with torch.no_grad():
        call(cache, weight)
    assert cache.cpu().tolist() == [3.0] * 3 and not cache.requires_grad
    (weight * cache).sum().backward()
    assert weight.grad.cpu().tolist() == [3.0] * 3


@asks_for_grad
@every_way
def test_update_of_what_a_gradient_needs(call):
    weight = torch.ones(3, device=DEVICE, requires_grad=True)
    hidden = weight * 2
    loss = (hidden * hidden).sum()
    with torch.no_grad():
        call(hidden, torch.ones(3, device=DEVICE))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(RuntimeError, match=r"leaf [vV]ariable that requires grad"):
        call(weight, torch.ones(3, device=DEVICE))
    assert weight.cpu().tolist() == [1.0] * 3


@pytest.fixture(scope="module")
def again():
    """Another implementation of probe_accumulate."""
    return Implementation(ops.probe_accumulate, "again", "probe_accumulate_again")


@pytest.mark.parametrize("how", ["called", "torch.ops", "chosen"])
@pytest.mark.parametrize("compiled", [False, True])
def test_an_implementation_updates_in_place_too(again, how, compiled):
    """Called as the op is, as an overload, or in place of the op; afterwards the op's own kernel is back."""
    function = {"called": again, "torch.ops": again.overload, "chosen": ops.probe_accumulate}[how]
    call = torch.compile(lambda c, u: function(c, u), backend="openxla", fullgraph=True) if compiled else function
    with use_implementation("probe_accumulate", "again" if how == "chosen" else "default"):
        # A size that no other test has, so that XLA compiles it.
        size = 20 + 2 * ["called", "torch.ops", "chosen"].index(how) + compiled
        cache, update = torch.ones(size, device=DEVICE), torch.arange(float(size), device=DEVICE)
        torch_xla.sync(wait=True)
        with hlo.optimized_modules() as modules:
            total = call(cache, update)
            torch_xla.sync(wait=True)
    testing.check_in_place(again, modules, count=1)
    assert not any(custom_calls(text, ops.probe_accumulate.target) for text in modules)
    assert cache.cpu().tolist() == [1.0 + i for i in range(size)] and total.item() == cache.cpu().sum().item()
    on_cpu = torch.ones(size)
    assert function(on_cpu, torch.ones(size)).item() == 2 * size and on_cpu.tolist() == [2.0] * size
    seen = pyxla.inspect(ops.probe_accumulate, cache, update)
    assert [c.target for c in seen.calls()] == [ops.probe_accumulate.target]
