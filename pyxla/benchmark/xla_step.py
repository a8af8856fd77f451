"""The layer "xla step": an op's calls in one graph, compiled with torch.compile(backend="openxla")."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from pyxla import hlo
from pyxla.benchmark import Arguments
from pyxla.benchmark.check import Expected
from pyxla.benchmark.layers import Skipped, Step
from pyxla.hlo import text as hlo_text
from pyxla.pjrt.platform import requested_device
from pyxla.sync import sync
from pyxla.torch_ops.custom_op import CustomOp

NAME = "xla step"


def xla_step(
    op: CustomOp, arguments: Arguments, chained: tuple[str, int] | None, calls: int, expected: Expected
) -> Step | Skipped:
    """Compiles a step of one call, whose numbers are compared, and a step of `calls`, whose custom calls are counted.

    Args:
        op, arguments: the op and its arguments, CPU tensors.
        chained: what layers.chained_operand returned.
        calls: number of calls in the longer step.
        expected: what the step of one call must compute.

    Raises:
        AssertionError: wrong numbers, or XLA compiled another number of calls.
        PyxlaError: the handler's own error.
    """
    try:
        import torch_xla  # noqa: F401
    except ImportError as error:
        return Skipped(NAME, f"torch_xla: {error}")
    sets = calls if chained is None and not op.schema.mutated else 1
    first = on_xla(arguments)
    one, results, _ = _compile(op, [first], chained, 1)
    mutated = [first[argument.name] for argument in op.schema.mutated]
    expected.compare([t.cpu() for t in (*mutated, *results)])
    many, _, captured = _compile(op, [first, *(on_xla(arguments) for _ in range(sets - 1))], chained, calls)
    how = "compiled by torch.compile, backend openxla"
    if captured is not None:
        how += f", {captured} of {calls} calls in command buffers"
    return Step(NAME, how, seconds, one, many, calls)


def seconds(step: Callable[[], Any]) -> float:
    """The time from a step's start until the device has computed it, by the host's clock."""
    import torch_xla

    start = time.perf_counter()
    step()
    torch_xla.sync(wait=True)
    torch_xla.core.xla_model.wait_device_ops()
    return time.perf_counter() - start


def on_xla(arguments: Arguments) -> Arguments:
    """The arguments with their tensors on the XLA device."""
    import torch_xla

    device = torch_xla.device()
    return {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}


def _compile(
    op: CustomOp, sets: Sequence[Arguments], chained: tuple[str, int] | None, calls: int
) -> tuple[Callable[[], tuple], tuple, int | None]:
    """A step of `calls` calls, its first results, and how many of the calls XLA:CUDA captured (None on the CPU)."""
    attributes = {n: v for n, v in sets[0].items() if not isinstance(v, torch.Tensor)}
    tensors = [{n: v for n, v in arguments.items() if isinstance(v, torch.Tensor)} for arguments in sets]

    def step(tensors: list[dict[str, torch.Tensor]]) -> tuple:
        kept: list[tuple] = []
        current = dict(tensors[0])
        for number in range(calls):
            if len(tensors) > 1:
                current = tensors[number]
            results = op(**current, **attributes)
            results = results if isinstance(results, tuple) else () if results is None else (results,)
            if chained is not None:
                current[chained[0]] = results[chained[1]]
            # XLA drops a call whose results nobody reads, so all results of independent calls are kept.
            kept = [*kept, results] if len(tensors) > 1 else [results]
        return tuple(tensor for results in kept for tensor in results)

    with hlo.thunk_sequences() as sequences:
        compiled, results, found = compile_step(step, tensors, {op.target})
    assert found == calls, f"{op.name}: expected {calls} custom calls in the compiled step, got {found}"
    captured = None
    if requested_device() == "CUDA":
        captured = max((hlo_text.captured_calls(text)[0] for text in sequences), default=0)
    return lambda: compiled(tensors), results, captured


def compile_step(step: FunctionType, tensors: Any, targets: set[str]) -> tuple[Callable[[Any], Any], Any, int]:
    """Compiles a step as one graph and calls it.

    Args:
        step: a function that is defined anew for each call of this one.
        tensors: its argument, on XLA.
        targets: of custom calls.

    Returns:
        The compiled step, the results of the call, and the number of custom calls with these targets in the graph.

    Raises:
        PyxlaError: a handler's error.
    """
    # dynamo keeps graphs by code object: under a shared one it could take the graph of an earlier call.
    step.__code__ = step.__code__.replace()
    compiled = torch.compile(step, backend="openxla", fullgraph=True, dynamic=False)
    with hlo.optimized_modules() as modules:
        results = compiled(tensors)
        sync()
    counts = [sum(call.target in targets for call in hlo_text.custom_calls(text)) for text in modules]
    return compiled, results, max(counts, default=0)
