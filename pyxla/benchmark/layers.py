"""The layers of a bench, which are timed in turns. Preparing a layer checks its numbers, so a wrong one never exists.

"raw" is one call of the handler with cold caches. In "raw step" and "xla step" several calls follow each other, in the
first through ctypes, in the second in a compiled XLA graph; the fixed cost of a step, known from a step of one call, is
subtracted. Each call gets the result of the call before, if a result fits an operand, and the caches as that left them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pyxla.benchmark import Arguments
from pyxla.benchmark.check import Expected
from pyxla.library.find import Library
from pyxla.testing.direct_call import in_order, prepare
from pyxla.torch_ops.custom_op import CustomOp

WARM_UP = 3
_MOST_CALLS = 128


@dataclass(frozen=True)
class Skipped:
    """A layer that is not timed, and why."""

    name: str
    reason: str


@dataclass
class Single:
    """A layer whose calls are timed one at a time, with cold caches.

    Attributes:
        name: its name in the table.
        how: how it is called, for the record.
        device: the device that it runs on, HostDevice or one of cuda.py.
        call: one call.
        seconds: the samples so far.
    """

    name: str
    how: str
    device: Any
    call: Callable[[], Any]
    calls: int = 1
    seconds: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """Takes one sample."""
        self.seconds.append(self.device.seconds(self.call, cold=True))

    @property
    def caches(self) -> str:
        """The state of the caches when a call begins."""
        return "cold"

    def samples(self) -> list[float]:
        """Seconds of a call, one per round."""
        return self.seconds


@dataclass
class Step:
    """A layer for which a step of several calls and a step of one call are timed.

    Attributes:
        name, how: as in Single.
        clock: takes a function, and returns the seconds that a call of it takes.
        one, many: the step of one call, and the step of several.
        calls: number of calls in `many`.
    """

    name: str
    how: str
    clock: Callable[[Callable[[], Any]], float]
    one: Callable[[], Any]
    many: Callable[[], Any]
    calls: int
    _one: list[float] = field(default_factory=list)
    _many: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """Takes one sample of each step."""
        # Not counted: after another layer, even Python's own code is no longer in the caches.
        self.clock(self.one)
        self._one.append(self.clock(self.one))
        self._many.append(self.clock(self.many))

    @property
    def caches(self) -> str:
        """As in Single."""
        return "as the call before leaves them"

    def samples(self) -> list[float]:
        """Seconds of a call, one per round, without the fixed cost of a step.

        many = start + calls * call, one = start + call. Each round has an estimate of its own: one `start` for all
        would be an error that all samples share, so that their spread does not show it.
        """
        return [self._call(one, many) for one, many in zip(self._one, self._many, strict=True)]

    def _call(self, one: float, many: float) -> float:
        # Noise may make `start` negative, or too large: times stay above 0.
        return min(max((many - one) / (self.calls - 1), 0.01 * many / self.calls), many / self.calls)


def chained_operand(op: CustomOp, arguments: Arguments, results: Sequence[Any]) -> tuple[str, int] | None:
    """The operand that a call in a step takes from the call before, and the number of that result; None: none fits."""
    if op.schema.mutated:
        return None
    for index, result in enumerate(results):
        for operand in op.schema.tensors:
            value = arguments.get(operand.name)
            if value is not None and (tuple(value.shape), value.dtype) == (tuple(result.shape), result.dtype):
                return operand.name, index
    return None


def step_calls(op: CustomOp, arguments: Arguments, results: Sequence[Any], seconds: float, device: Any) -> int:
    """How many calls a step has: enough that its start-up does not matter.

    Calls that do not depend on each other have separate operands, because XLA would merge two equal calls. Then memory
    is a limit too.
    """
    wanted = calls_in_a_row(seconds, device)
    if op.schema.mutated or chained_operand(op, arguments, results):
        return wanted
    tensors = [*(v for v in arguments.values() if isinstance(v, torch.Tensor)), *results]
    return max(2, min(wanted, device.step_bytes // max(1, sum(t.nbytes for t in tensors))))


def calls_in_a_row(seconds: float, device: Any) -> int:
    """How many calls of so many seconds take so long that their start-up does not matter."""
    return min(max(4, math.ceil(device.step_seconds / max(seconds, 1e-9))), _MOST_CALLS)


class Raw:
    """Raw calls of an op in the device's memory.

    Attributes:
        results: the op's results without data, for their shapes and dtypes.
        chained: what chained_operand returns.
        error: worst error of the call that was checked, as a share of the allowed error.
    """

    def __init__(
        self, op: CustomOp, arguments: Arguments, device: Any, expected: Expected, library: Library | None = None
    ):
        """Makes one call and checks its numbers.

        Args:
            op, arguments, device, expected: what is called, where, and what it must compute.
            library: with the handler; None: the one that `find_library` finds.

        Raises:
            AssertionError: the numbers are wrong.
            PyxlaError: the handler's own error.
        """
        self._op, self._arguments, self._device, self._library = op, arguments, device, library
        values = in_order(op, arguments)
        metas = tuple(torch.empty_like(v, device="meta") if isinstance(v, torch.Tensor) else v for v in values)
        self.results = op.infer_results(metas)
        self.chained = chained_operand(op, arguments, self.results)
        size = op.workspace_bytes(metas, device.platform)
        self._workspace = None if size is None else device.empty((size,), torch.uint8)
        self._operands, self._outputs = self._copies(), self._empties()
        launch = self._launch(self._operands, self._outputs)
        device.run(launch)
        mutated = (self._operands[argument.name] for argument in op.schema.mutated)
        self.error = expected.compare([device.read(array) for array in (*mutated, *self._outputs)])
        self._first = launch

    def single(self) -> Single:
        """The layer "raw"."""
        return Single("raw", self._device.how, self._device, self._device.bind([self._first]))

    def single_of(self, name: str, library: Library) -> Single:
        """The layer "raw" under another name, of another library whose numbers were checked.

        It has the same memory: where operands lie changes the time by as much as libraries may differ.
        """
        launch = self._launch(self._operands, self._outputs, library)
        return Single(name, self._device.how, self._device, self._device.bind([launch]))

    def step(self, calls: int) -> Step:
        """The layer "raw step"."""
        launches = self._launches(calls)
        one, many = self._device.bind(launches[:1]), self._device.bind(launches)
        return Step("raw step", self._device.how, lambda call: self._device.seconds(call, cold=False), one, many, calls)

    def _launches(self, calls: int) -> list[Callable[[int], None]]:
        if self._op.schema.mutated:
            return [self._first] * calls
        if self.chained is None:
            own = [self._launch(self._copies(), self._empties()) for _ in range(calls - 1)]
            return [self._first, *own]
        # The first call reads the bench's own operand in every step; the others alternate between two results.
        name, index = self.chained
        turns = [self._outputs, self._empties()]
        others = [self._launch({**self._operands, name: turns[turn][index]}, turns[1 - turn]) for turn in range(2)]
        return [self._first, *(others[number % 2] for number in range(calls - 1))]

    def _launch(
        self, operands: Arguments, results: Sequence[Any], library: Library | None = None
    ) -> Callable[[int], None]:
        platform, workspace, library = self._device.platform, self._workspace, library or self._library
        return prepare(self._op, operands, results, platform, workspace=workspace, library=library)

    def _copies(self) -> Arguments:
        return {n: self._device.copy(v) if isinstance(v, torch.Tensor) else v for n, v in self._arguments.items()}

    def _empties(self) -> list[Any]:
        return [self._device.empty(tuple(t.shape), t.dtype) for t in self.results]


def warm_up(layer: Single | Step) -> float:
    """Makes a few calls whose times do not count; returns the shortest time, in seconds."""
    for _ in range(WARM_UP):
        layer.measure()
    shortest = min(layer.samples())
    for name in ("seconds", "_one", "_many"):
        getattr(layer, name, []).clear()
    return shortest
