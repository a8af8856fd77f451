"""Times ops for `devtool bench`: BENCHES and STEPS in an op's cases.py; `python -m pyxla.benchmark` measures them.

Each bench is first compared with the reference in float64. Then its layers are timed in turns, so that noise affects
all alike: raw calls of the handler, the op in a compiled XLA step, and the peers, which a user would use instead. A
`Step` is one compiled graph of several ops, such as a layer of a decoder, and is checked and timed as a whole.

`python -m pyxla.benchmark OP... --device cpu|cuda --json FILE` measures without devtool, with the libraries that pyxla
finds; `devtool bench --load FILE` shows the run. The peers are timed if torch sees the device, "xla step" if torch_xla
is installed. `python -m pyxla.benchmark.variants`, which `devtool tune` runs, times several builds of one op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Bench", "Step", "nbytes"]

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """One input to time an op on.

    Attributes:
        name: short: "bf16-16384x4096".
        why: the reason for this size.
        build: makes the arguments by name, CPU tensors, from a seeded generator, as Case.build.
        bytes: the fewest bytes that a call must move, from its arguments: each operand and result once.
        operations: the fewest floating-point operations of a call.
        peer: the same computation with torch's own ops, called with the arguments by name on the device; timed eagerly
            as "torch", and as "torch.compile". It returns the op's results, without arguments updated in place.
        reads_lengths: the peer reads data on the host, such as lengths, so it cannot be compiled as one graph.
        others: name of another peer -> a function that takes the arguments by name, as CUDA tensors, does the work that
            is not repeated for each call, and returns the call. It raises ImportError if the peer is not installed.
        sample: for results that are too large for float64: takes the arguments, and returns those of a smaller call
            and the rows of every result of the whole call that the smaller call computes.
        roundings: as in Case.
        devices: the devices on which it makes sense: "cpu", "cuda".
    """

    name: str
    why: str
    build: Callable[[torch.Generator], Arguments]
    bytes: Callable[[Arguments], int]
    operations: Callable[[Arguments], int]
    peer: Callable[..., Any] | None = None
    reads_lengths: bool = False
    others: dict[str, Callable[..., Callable[[], Any]]] = field(default_factory=dict)
    sample: Callable[[Arguments], tuple[Arguments, torch.Tensor]] | None = None
    roundings: int = 16
    devices: tuple[str, ...] = ("cpu", "cuda")

    def __str__(self) -> str:
        return self.name

    def arguments(self, seed: int = 0) -> Arguments:
        """The arguments for a seed."""
        return self.build(torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Step:
    """A graph of several ops, among them the one whose cases.py lists it in STEPS: a decode step of one layer, say.

    Attributes:
        name: short, unlike those of the op's benches: "bf16-decoder-layer-64x4096".
        why: the reason for this size.
        build: makes the arguments by name, weights included: CPU tensors, from a seeded generator, and numbers.
        run: the step, called with the arguments by name; it calls ops as torch.ops.<namespace>.<op>. It is compiled as
            one graph on XLA, and computes the expected results with the ops' references, all floating-point tensors as
            float64. It returns a floating-point tensor or a tuple of them; among them should be one in which a wrong
            result of the op shows, as the op's own. It may update arguments in place, if it computes the same results
            when it is called with them again.
        bytes, operations: as in Bench, of the whole step.
        ops: folders of the other ops of the repository that it calls; `devtool bench` builds them too.
        devices: as in Bench.
    """

    name: str
    why: str
    build: Callable[[torch.Generator], Arguments]
    run: Callable[..., Any]
    bytes: Callable[[Arguments], int]
    operations: Callable[[Arguments], int]
    ops: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu", "cuda")

    def __str__(self) -> str:
        return self.name

    def arguments(self, seed: int = 0) -> Arguments:
        """The arguments for a seed."""
        return self.build(torch.Generator().manual_seed(seed))


def nbytes(*tensors: torch.Tensor | None) -> int:
    """Bytes of all these tensors together; None counts as 0."""
    return sum(t.nbytes for t in tensors if t is not None)
