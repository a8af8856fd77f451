"""What pyxla.shard corrects in torch_xla's compiled functions: the order of inputs, and in-place updates."""

import inspect
import time

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs

import pyxla
from pyxla.hlo.dump import executions
from pyxla.testing.tolerance import compare
from pyxla.torch_xla_patches import mesh, traced_graph
from pyxla.torch_xla_patches.mesh import apply_mesh_patches

MESH = xs.Mesh(np.arange(4), (4,), ("data",))
DEVICE = torch_xla.device()


@pytest.fixture(autouse=True)
def _patched():
    torch._dynamo.reset()
    apply_mesh_patches()


def split(value, axes=("data", None)):
    """The value on the devices, computed there."""
    tensor = value.to(DEVICE)
    xs.mark_sharding(tensor, MESH, axes)
    torch_xla.sync()
    return tensor


class Normalised(torch.nn.Module):
    """rms_norm with its own weight, compiled: Dynamo has one graph for all such modules."""

    def __init__(self, weight):
        super().__init__()
        self.register_buffer("weight", weight.to(DEVICE))
        norm = pyxla.shard(pyxla.find_op("rms_norm"), "rows", MESH)
        self.compiled = torch.compile(lambda x: norm(x, self.weight), backend="openxla", fullgraph=True)


def test_modules_of_one_graph_keep_their_own_weights():
    """Traced a second time under SPMD, a weight could become a constant: all modules would use the first one's."""
    weights = [torch.full((8,), 1.0), torch.full((8,), 5.0)]
    modules = [Normalised(weight) for weight in weights]
    for _ in range(3):
        x = torch.randn(4, 8)
        on_xla = x.to(DEVICE)
        torch_xla.sync()
        for module, weight in zip(modules, weights, strict=True):
            want = pyxla.find_op("rms_norm").reference(x.double(), weight.double())
            compare("rms_norm", module.compiled(on_xla).cpu(), want)


def finished_executions():
    """The number of runs; a run is counted when its thread has ended."""
    xm.wait_device_ops()
    return executions()


def add_and_return(total, step):
    total.add_(step)
    return total.clone()


def add_and_return_the_sum_itself(total, step):
    new = total + step
    total.copy_(new)
    return new


def donate_and_return(total, step):
    torch.ops.pyxla.donate(total)
    total.add_(step)
    return total.clone()


def copy_the_sum(total, other, step):
    total.add_(step)
    other.copy_(total)
    # torch_xla would return the sum for any further result.
    return total.clone()


SHARING = [add_and_return, add_and_return_the_sum_itself, donate_and_return, copy_the_sum]


@pytest.mark.parametrize("function", SHARING)
@torch.no_grad()
def test_a_value_that_has_two_names_is_two_values(function):
    """What is written to an argument is also returned, or written to another one."""
    on_cpu = [torch.randn(8, 16) for _ in inspect.signature(function).parameters]
    on_xla = [split(tensor) for tensor in on_cpu]
    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    reference = add_and_return if function is donate_and_return else function
    results, wanted = [], []
    for _ in range(3):
        results.append(compiled(*on_xla))
        wanted.append(reference(*on_cpu).clone())
    # Each argument in turn gets another value, which no other tensor may see.
    for argument, want in zip([None, *on_xla], [None, *on_cpu], strict=True):
        if argument is not None:
            argument.copy_(torch.full((8, 16), 50.0))
            torch_xla.sync()
            want.fill_(50.0)
        for got, expected in zip([*results, *on_xla], [*wanted, *on_cpu], strict=True):
            torch.testing.assert_close(got.cpu(), expected)


@torch.no_grad()
def test_an_updated_argument_runs_no_graph_of_its_own():
    """Each call sees the previous call's update, and so does a second function."""
    value, added = torch.randn(8, 16), torch.randn(8, 16)
    total, step = split(value), split(added)
    add = torch.compile(lambda total, step: total.add_(step).sum(), backend="openxla", fullgraph=True)
    twice = torch.compile(lambda total: total.mul_(2).sum(), backend="openxla", fullgraph=True)
    for function, arguments in ((add, (total, step)), (twice, (total,))):
        function(*arguments)
    before = finished_executions()
    for _ in range(3):
        add(total, step)
    twice(total)
    assert finished_executions() - before == 4
    # Nor does the next sync, which would copy each argument.
    torch_xla.sync()
    assert finished_executions() - before == 4
    compare("total", total.cpu(), ((value.double() + added) * 2 + 3 * added.double()) * 2, roundings=16)


@torch.no_grad()
def test_a_copied_value_is_nobody_elses():
    """Neither tensor sees later updates of the other, and the sharding is kept."""
    target, source = split(torch.zeros(8, 16)), split(torch.ones(8, 16))
    sharding = torch_xla._XLAC._get_xla_sharding_spec(target)
    target.copy_(source)
    assert torch_xla._XLAC._get_xla_sharding_spec(target) == sharding
    source.add_(1)
    assert target.cpu().eq(1).all() and source.cpu().eq(2).all()
    target.copy_(source)
    target.mul_(5)
    torch_xla.sync()
    assert target.cpu().eq(10).all() and source.cpu().eq(2).all()
    assert torch_xla._XLAC._get_xla_sharding_spec(target) == sharding


@torch.no_grad()
def test_a_copied_value_is_an_input_of_its_own():
    """A function that is compiled for both reads both."""
    target, source = split(torch.zeros(8, 16)), split(torch.ones(8, 16))
    target.copy_(source)
    difference = torch.compile(lambda x, y: x - y, backend="openxla")
    assert difference(target, source).cpu().eq(0).all()
    assert difference(split(torch.full((8, 16), 5.0)), split(torch.full((8, 16), 3.0))).cpu().eq(2).all()


@torch.no_grad()
@pytest.mark.parametrize(
    ("source", "why"),
    [
        (lambda: split(torch.full((8, 16), 3.0), (None, "data")), "sharded otherwise"),
        (lambda: torch.full((8, 16), 3.0, device=DEVICE), "not sharded, and not computed"),
        (lambda: split(torch.full((8, 16), 3)), "of another dtype"),
        (lambda: split(torch.full((8, 1), 3.0)), "of a shape that is broadcast"),
        (lambda: torch.full((8, 16), 3.0), "of the host"),
    ],
    ids=lambda given: given.replace(" ", "-") if isinstance(given, str) else "",
)
def test_other_values_are_copied_by_torch_xla(source, why):
    """The target keeps its dtype and shape."""
    target = split(torch.zeros(8, 16))
    target.copy_(source())
    torch_xla.sync()
    assert target.dtype == torch.float32 and target.cpu().eq(torch.full((8, 16), 3.0)).all()


# Products of a step that takes long enough to tell its time from the host's.
PRODUCTS = 150


def long_step(cache, weight):
    """Updates the cache in place with what takes long."""
    traced_graph.donate(cache)
    x = cache
    for _ in range(PRODUCTS):
        x = (x @ weight).tanh()
    cache.add_(x + 1)
    return [x.sum()]


@torch.no_grad()
def test_a_call_returns_before_its_graph_has_run(monkeypatch):
    """Otherwise it waited for the whole run to release the donated cache, if the launch was faster than the caller."""
    run = torch_xla._XLAC._run_cached_graph

    def launch(*given):
        results = run(*given)
        time.sleep(0.05)
        return results

    monkeypatch.setattr(torch_xla._XLAC, "_run_cached_graph", launch)
    cache, weight = split(torch.zeros(64, 1024)), split(torch.eye(1024), (None, None))
    step = traced_graph.trace_graph(long_step, (cache, weight))
    parts, value = [], torch.zeros((), dtype=torch.float64)
    for _ in range(8):
        began = time.perf_counter()
        step(cache, weight)
        returned = time.perf_counter() - began
        xm.wait_device_ops()
        parts.append(returned / (time.perf_counter() - began))
        repeated = value
        for _ in range(PRODUCTS):
            repeated = repeated.tanh()
        value = value + repeated + 1
        # The old cache, one step's and no more, until the next graph has been launched.
        assert (len(mesh._OLD_VALUES), len(mesh._OLDER_VALUES)) == (1, 0)
    # The first run is not of a warm graph.
    assert max(parts[1:]) < 0.5, parts
    torch_xla.sync()
    compare("cache", cache.cpu(), value.expand(64, 1024), roundings=PRODUCTS * 16)


@torch.no_grad()
def test_old_values_are_released_after_the_next_launch(monkeypatch):
    """Not before it: the host would wait for the graph that runs, and launch the next one too late."""
    run, kept_by_launch = torch_xla._XLAC._run_cached_graph, []

    def launch(*given):
        results = run(*given)
        kept_by_launch.append(len(mesh._OLDER_VALUES))
        return results

    monkeypatch.setattr(torch_xla._XLAC, "_run_cached_graph", launch)
    cache = split(torch.zeros(8, 16))
    step = traced_graph.trace_graph(lambda cache: [cache.add_(1).sum()], (cache,))
    step(cache)
    kept_by_launch.clear()
    for _ in range(3):
        step(cache)
        assert (len(mesh._OLD_VALUES), len(mesh._OLDER_VALUES)) == (1, 0)
    assert kept_by_launch == [1, 1, 1]
