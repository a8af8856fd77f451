"""Checks and times a `Step`: one compiled graph of several ops, and the same graph with another library of the op.

Both graphs are in one process: the other library's handlers are registered with XLA under targets of their own, and
while its graph is traced, the op is lowered to those.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from pyxla.benchmark import Arguments, Step
from pyxla.benchmark.check import LARGEST_ERROR, relative_error
from pyxla.benchmark.layers import Skipped, calls_in_a_row, warm_up
from pyxla.benchmark.layers import Step as Timed
from pyxla.benchmark.run import Tell, first_line, in_turns, layer_record, new_record
from pyxla.benchmark.xla_step import NAME, compile_step, on_xla, seconds
from pyxla.errors import LibraryError, PyxlaError
from pyxla.library.find import Library
from pyxla.library.register import register_library
from pyxla.pjrt.platform import platform
from pyxla.torch_ops.custom_op import CustomOp, ops_of_library


def tells_of(rounds: int, against: bool) -> int:
    """How often `measure_step` calls `tell`, for a progress bar."""
    return 2 + against + rounds


def measure_step(
    op: CustomOp,
    step: Step,
    device: Any,
    *,
    rounds: int,
    tell: Tell,
    against: tuple[str, Library] | None = None,
) -> dict[str, Any]:
    """Compares a step's results with float64, then times it in turns with the same step of another library.

    Args:
        op, step: the op and its step.
        device: HostDevice or one of cuda.py.
        rounds: samples of each layer.
        tell: called with what is done next, `tells_of` times.
        against: a name and another library of the op: "HEAD xla step" next to "xla step".

    Returns:
        The record, as of a bench with the only layer "xla step".

    Raises:
        LibraryError: the op, or another one that the step calls, has no library.
    """
    tell("input and reference")
    torch._dynamo.reset()
    arguments = step.arguments()
    record = new_record(op, step, arguments) | {"checked": "all"}
    try:
        import torch_xla  # noqa: F401  defines the ops
    except ImportError as error:
        return record | {"layers": [layer_record(Skipped(NAME, f"torch_xla: {error}"))]}
    sides = _Sides(op, step, arguments, device)
    made: list[Timed | Skipped | dict] = []
    for name, library in {NAME: None, **({f"{against[0]} {NAME}": against[1]} if against else {})}.items():
        tell(f"{name}: compiles")
        try:
            layer, error = sides.layer(name, library)
            made.append(layer)
            record.setdefault("error", error)
        except (AssertionError, PyxlaError) as error:
            if library is None and isinstance(error, LibraryError):
                raise
            # The other one may have had other arguments then.
            made.append(Skipped(name, first_line(error)) if library else {"name": name, "refused": first_line(error)})
    timed = [layer for layer in made if isinstance(layer, Timed)]
    for layer in timed:
        warm_up(layer)
    # A graph that was traced again would call the op's own library.
    with torch.compiler.set_stance("fail_on_recompile"):
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            record["control"].append(device.seconds(device.write_other_data, cold=False))
            for layer in in_turns(timed, {NAME: timed[1:]}, number):
                layer.measure()
    return record | {"layers": [layer_record(layer) for layer in made]}


class _Sides:
    """The graphs of a step, one for each library, with the same arguments in the same memory."""

    def __init__(self, op: CustomOp, step: Step, arguments: Arguments, device: Any):
        """Computes the expected results.

        Args:
            arguments: of the step, on the CPU.
            device: also has the place for float64, as a GPU computes it a hundred times faster.
        """
        self._op, self._step, self._device = op, step, device
        place = device.peers or torch.device("cpu")
        self._want = _results(step.run(**{name: _wide(value, place) for name, value in arguments.items()}))
        self._arguments, self._calls = on_xla(arguments), 0

    def layer(self, name: str, library: Library | None) -> tuple[Timed, float]:
        """The layer of a library, None for the one that `find_library` finds; and its error as a share of the limit.

        Raises:
            AssertionError: wrong numbers, or the graph has no call of the op.
            PyxlaError: a handler's own error, or a library that cannot be used.
        """
        tensors = {n: v for n, v in self._arguments.items() if isinstance(v, torch.Tensor)}
        attributes = {n: v for n, v in self._arguments.items() if n not in tensors}
        run = self._step.run

        def step(tensors: Arguments) -> Any:
            return run(**tensors, **attributes)

        with _calling(self._op, library) as targets:
            compiled, _, found = compile_step(step, tensors, targets)
        called = " or ".join(sorted(targets))
        assert found, f"{self._step.name}: expected a custom call of {called} in the compiled step, got none"
        # Of the second call: a step that adds to its own arguments is not the same work every time.
        error = self._error(_results(compiled(tensors)))

        def one() -> None:
            compiled(tensors)

        def many() -> None:
            for _ in range(calls):
                compiled(tensors)

        calls = self._calls = self._calls or calls_in_a_row(min(seconds(one) for _ in range(3)), self._device)
        return Timed(name, "compiled by torch.compile, backend openxla", seconds, one, many, calls), error

    def _error(self, got: Sequence[torch.Tensor]) -> float:
        name = self._step.name
        assert len(got) == len(self._want), f"{name}: expected {len(self._want)} results, got {len(got)}"
        worst = 0.0
        for number, (result, want) in enumerate(zip(got, self._want, strict=True)):
            error = relative_error(result.cpu().to(want.device).double(), want.double())
            assert error <= LARGEST_ERROR, f"{name}: result {number}: expected float64's, got {error:.2g} off"
            worst = max(worst, error / LARGEST_ERROR)
        return worst


@contextmanager
def _calling(op: CustomOp, library: Library | None) -> Iterator[set[str]]:
    """Lowers the ops of the op's library to another one; gives the targets that their custom calls have meanwhile."""
    ops = ops_of_library(op.library, op.namespace)
    if library is None:
        yield {each.target for each in ops}
        return
    others = [copy.copy(each) for each in ops]
    for other in others:
        # As an implementation's name, of which its target is made.
        other.name += ".other"
    targets = {each.target: other.target for each, other in zip(ops, others, strict=True)}
    handlers = (replace(h, target=targets.get(h.target, f"{h.target}_other")) for h in library.table.handlers)
    register_library(replace(library, table=replace(library.table, handlers=tuple(handlers))), platform())
    try:
        for each, other in zip(ops, others, strict=True):
            each.lower_to(other)
        yield {*targets.values()}
    finally:
        for each in ops:
            each.lower_to(each)


def _results(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _wide(value: Any, place: torch.device) -> Any:
    """A copy for the reference, which may update it in place."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(place, torch.float64 if value.is_floating_point() else value.dtype, copy=True)
