"""pyxla.benchmark.whole_step: a graph of several ops, with each of two libraries of one op, checked and timed."""

import importlib

import pytest
import torch

from pyxla import hlo
from pyxla.benchmark import Step, nbytes
from pyxla.benchmark.__main__ import benches, steps
from pyxla.benchmark.whole_step import measure_step, tells_of
from pyxla.benchmark.xla_step import compile_step, on_xla
from pyxla.hlo.text import custom_calls
from pyxla.library.find import find_library
from pyxla.torch_ops.custom_op import find_op
from tests.layers.test_imports import OPS

TARGET = "xla_gpu_simple_add"
STEPS = [(op, step) for op in OPS for step in steps(op)]
ON_THE_CPU = [(op, step) for op, step in STEPS if "cpu" in step.devices]


def added(a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    return torch.ops.xla_gpu.simple_add(a, b, alpha).sin()


def small(run=added, alpha: float = 0.5) -> Step:
    """A step of some microseconds. torch_xla compiles an equal graph only once, so each test has another `alpha`."""
    return Step(
        "small",
        "quick",
        lambda g: {"a": torch.randn(4, 8, generator=g), "b": torch.randn(4, 8, generator=g), "alpha": alpha},
        run,
        bytes=lambda a: 3 * nbytes(a["a"]),
        operations=lambda a: 3 * a["a"].numel(),
    )


def measured(step: Step, device, *, op: str = "simple_add", rounds: int = 3, against=None) -> tuple[dict, list[str]]:
    """The record, and the targets of all custom calls that XLA compiled."""
    told = []
    with hlo.optimized_modules() as modules:
        record = measure_step(find_op(op), step, device, rounds=rounds, tell=told.append, against=against)
    assert len(told) == tells_of(rounds, against is not None)
    return record, [call.target for text in modules for call in custom_calls(text)]


def test_each_library_has_a_graph(device):
    record, targets = measured(small(), device, against=("HEAD", find_library("simple_add")))
    assert [layer["name"] for layer in record["layers"]] == ["xla step", "HEAD xla step"]
    assert all(len(la["seconds"]) == 3 and min(la["seconds"]) > 0 and la["calls"] >= 4 for la in record["layers"])
    assert record["layers"][0]["calls"] == record["layers"][1]["calls"]
    assert targets == [TARGET, f"{TARGET}_other"]
    assert (record["bytes"], record["operations"], record["checked"]) == (3 * 128, 96, "all")
    assert 0 <= record["error"] < 0.01 and len(record["control"]) == 3


def test_later_calls_have_the_ops_own_library(device):
    record, _ = measured(small(alpha=0.25), device, rounds=1, against=("HEAD", find_library("simple_add")))
    assert ["seconds" in layer for layer in record["layers"]] == [True, True]
    arguments = on_xla(small().arguments())

    def step(tensors):
        return added(*tensors, 0.125)

    _, _, found = compile_step(step, (arguments["a"], arguments["b"]), {TARGET})
    assert found == 1


def off_on_xla(a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    return added(a, b, alpha if a.dtype == torch.float64 else 1.1 * alpha)


def accumulated(a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    a.add_(b)
    return added(a, b, alpha)


def without_the_op(a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    return torch.add(a, b, alpha=alpha)


def twice_in_float64(a: torch.Tensor, b: torch.Tensor, alpha: float) -> tuple[torch.Tensor, ...]:
    return (added(a, b, alpha),) * (1 + (a.dtype == torch.float64))


def with_nan(a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    return added(a, b, alpha).log()


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (off_on_xla, "small: result 0: expected float64's, got 0."),
        (accumulated, "small: result 0: expected float64's, got "),
        (without_the_op, f"small: expected a custom call of {TARGET} in the compiled"),
        (twice_in_float64, "small: expected 2 results, got 1"),
        (with_nan, "small: result 0: expected float64's, got nan off"),
    ],
)
def test_step_that_is_wrong_is_not_timed(device, run, reason):
    record, _ = measured(small(run, alpha=2.0), device)
    (layer,) = record["layers"]
    assert layer["refused"].startswith(reason) and "seconds" not in layer, layer


# The steps of the ops.


def test_names_of_steps_are_those_of_no_bench():
    assert {"paged_attention"} <= {op for op, _ in STEPS}
    for op in OPS:
        for device in ("cpu", "cuda"):
            names = [timed.name for timed in (*benches(op), *steps(op)) if device in timed.devices]
            assert len(names) == len(set(names))
    assert all(step.why and set(step.devices) <= {"cpu", "cuda"} for _, step in STEPS)


@pytest.mark.parametrize(("op", "step"), ON_THE_CPU, ids=lambda value: str(value))
def test_step_of_an_op_is_right_and_names_what_it_calls(device, op, step):
    importlib.import_module(f"pyxla_kernels.{op}.{op}")
    record, targets = measured(step, device, op=op, rounds=1)
    assert record["error"] < 1 and "seconds" in record["layers"][0], record
    assert set(targets) == {f"xla_gpu_{name}" for name in (op, *step.ops)}
    arguments = step.arguments()
    assert 0 < record["bytes"] <= 2 * nbytes(*(v for v in arguments.values() if torch.is_tensor(v)))
    assert record["operations"] > 0
