"""A function that is traced once and then runs as a graph, without torch.compile."""

import gc
import weakref

import pytest
import torch
import torch_xla
from pyxla_kernels.fused_add_rms_norm.fused_add_rms_norm import fused_add_rms_norm
from pyxla_kernels.reshape_and_cache.reshape_and_cache import reshape_and_cache

import pyxla
from pyxla.errors import PyxlaError
from pyxla.testing import compilations
from pyxla.torch_xla_patches.traced_graph import donate, is_traced, trace_graph

DEVICE = torch_xla.device()


def on_device(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).to(DEVICE)


def test_graph_takes_other_tensors_and_keeps_what_it_reads():
    weight, calls = on_device(10, 20), []

    def function(x: torch.Tensor, y: torch.Tensor) -> list:
        calls.append(is_traced())
        return [x * weight, None, x + y]

    run = trace_graph(function, [on_device(1, 2), on_device(3, 4)])
    before = compilations()
    for start in (5.0, 7.0):
        product, nothing, total = run(on_device(start, 6), on_device(1, 1))
        assert product.tolist() == [10 * start, 120] and total.tolist() == [start + 1, 7]
        assert nothing is None
    assert calls == [True] and not is_traced()
    # Reading a tensor compiles nothing.
    assert compilations() == before


def test_tracing_runs_nothing():
    """The argument that the function updates has its values still, and gets new ones from each run."""

    def add(x: torch.Tensor, y: torch.Tensor) -> list:
        donate(x)
        x += y
        return [x * 2]

    x = on_device(1, 2)
    run = trace_graph(add, [x, on_device(3, 4)])
    assert x.tolist() == [1, 2]
    for expected in ([2, 4], [3, 6]):
        assert run(x, on_device(1, 2)).tolist() == [2 * value for value in expected]
        assert x.tolist() == expected


def test_graph_keeps_no_tensor_that_it_was_traced_with():
    """A server's graphs would keep gigabytes of logits, also if they update them."""

    def add(x: torch.Tensor, y: torch.Tensor) -> list:
        x += y
        return [x * 2, None, y]

    given = [on_device(1, 2), on_device(3, 4)]
    run = trace_graph(add, given)
    left = [weakref.ref(tensor) for tensor in given]
    del given
    gc.collect()
    assert [tensor() for tensor in left] == [None, None]
    x, y = on_device(1, 2), on_device(5, 6)
    double, nothing, same = run(x, y)
    assert (double.tolist(), nothing, same.tolist(), x.tolist()) == ([12, 16], None, [5, 6], [6, 8])


def test_ops_update_in_place_without_a_copy():
    cache = torch.zeros(2, 4, 16, 2, 64).to(DEVICE)
    rows = torch.ones(3, 2, 64).to(DEVICE), torch.full((3, 2, 64), 2.0).to(DEVICE)
    slots = torch.tensor([0, 17, 63]).to(DEVICE)

    def store(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> list:
        reshape_and_cache(key, value, cache, slots)
        return [key + 1]

    run = trace_graph(store, [*rows, cache, slots])
    with pyxla.inspecting() as seen:
        run(*rows, cache, slots)
    pyxla.assert_custom_calls(seen, "reshape_and_cache", 1)
    pyxla.assert_no_copies(seen, "reshape_and_cache")
    found = cache.cpu().flatten(1, 2)
    assert found[:, [0, 17, 63], 0, 0].tolist() == [[1, 1, 1], [2, 2, 2]]
    assert found.sum() == 3 * 2 * 64 * (1 + 2)


def test_update_of_something_else_is_an_error():
    """It would be lost: a graph updates its arguments alone."""
    cache = torch.zeros(2, 4, 16, 2, 64).to(DEVICE)
    rows, slots = torch.ones(3, 2, 64).to(DEVICE), torch.tensor([0, 17, 63]).to(DEVICE)

    def store(key: torch.Tensor, slots: torch.Tensor) -> list:
        reshape_and_cache(key, key, cache, slots)
        return [key + 1]

    with pytest.raises(
        PyxlaError, match=r"expected updates of its arguments alone, got one of another tensor: \[2, 4, 16"
    ):
        trace_graph(store, [rows, slots])
    assert not is_traced()


def test_value_that_the_host_reads_is_an_error():
    """The graph would always go the way of the first call."""

    def branch(x: torch.Tensor) -> list:
        return [x * 2 if x.sum() > 0 else x * 3]

    with pytest.raises(PyxlaError, match=r"expected operations that XLA has, got aten::_local_scalar_dense"):
        trace_graph(branch, [on_device(1, 2)])


@pytest.mark.parametrize("mode", ["traced", "compiled"])
def test_update_of_a_clone_leaves_the_caller_s_tensor(mode):
    """The clone has no buffer of its own yet: given away, the caller's would be gone."""

    def function(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> list:
        residual = residual.clone()
        return [fused_add_rms_norm(x, residual, weight, 1e-6), residual]

    x, residual, weight = torch.randn(4, 64), torch.randn(4, 64), torch.randn(64)
    wanted = function(x, residual, weight)
    given = [tensor.to(DEVICE) for tensor in (x, residual, weight)]
    run = trace_graph(function, given) if mode == "traced" else torch.compile(function, backend="openxla")
    for _ in range(2):
        for got, want in zip(run(*given), wanted, strict=True):
            torch.testing.assert_close(got.cpu(), want)
        assert torch.equal(given[1].cpu(), residual)
