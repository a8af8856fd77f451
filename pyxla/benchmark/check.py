"""Compares the results of a layer with the reference in float64, before the layer is timed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pyxla.benchmark import Arguments, Bench
from pyxla.testing import oracle
from pyxla.testing.tolerance import compare
from pyxla.torch_ops.custom_op import CustomOp

# The limit for `relative_error` of a peer, which only has to do the same work, and of a step of several ops.
LARGEST_ERROR = 0.03


class Expected:
    """What an op must compute for a bench: all of it, or a sample of the rows.

    Attributes:
        extent: what is compared, for the record: "all", or "24 rows".
    """

    def __init__(self, op: CustomOp, bench: Bench, arguments: Arguments, place: torch.device | None = None):
        """Runs the reference.

        Args:
            op, bench: what is checked.
            arguments: the bench's, on the CPU.
            place: device for the reference and the comparisons; a GPU computes float64 a hundred times faster. None:
                the CPU.
        """
        self._op, self._bench = op, bench
        self._place = place or torch.device("cpu")
        self._where = f"{op.name}[{bench.name}]"
        self._rows = None
        if bench.sample:
            arguments, self._rows = bench.sample(arguments)
        moved = {n: v.to(self._place) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
        self._want = oracle(op, moved)
        self.extent = "all"
        if self._rows is not None:
            self.extent = f"{len(self._rows)} rows"

    def compare(self, outputs: Sequence[torch.Tensor]) -> float:
        """The worst error as a share of the allowed error.

        Args:
            outputs: the arguments updated in place, then the results; on any device.

        Raises:
            AssertionError: an element is wrong, or was not written.
        """
        assert len(outputs) == len(self._want), f"{self._where}: expected {len(self._want)} results, got {len(outputs)}"
        return max(self._compare_one(got, want) for got, want in zip(outputs, self._want, strict=True))

    def compare_peer(self, results: Sequence[torch.Tensor], mutated: Sequence[torch.Tensor]) -> None:
        """Compares a peer's results, or if it has none, the tensors that it updated in place, with a wider tolerance.

        Raises:
            AssertionError: the difference is larger, so the peer does other work.
        """
        count = len(self._op.schema.mutated)
        want = self._want[count:] if results else self._want[:count]
        for got, wanted in zip(results or mutated, want, strict=True):
            got, wanted = self._chosen(got).double(), wanted.double()
            assert got.shape == wanted.shape, f"shape: expected {tuple(wanted.shape)}, got {tuple(got.shape)}"
            error = relative_error(got, wanted)
            assert error <= LARGEST_ERROR, f"values: expected the op's, got {error:.2g} off"

    def _compare_one(self, got: torch.Tensor, want: torch.Tensor) -> float:
        if self._rows is not None and got.is_floating_point():
            count = int(got.isnan().sum()) - int(want.isnan().sum())
            assert count <= 0, f"{self._where}: values: expected every row to be written, got {count} NaN"
        return compare(self._where, self._chosen(got), want, roundings=self._bench.roundings)

    def _chosen(self, got: torch.Tensor) -> torch.Tensor:
        got = got.to(self._place)
        return got if self._rows is None else got[self._rows.to(self._place)]


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Root mean square of the error over that of the wanted values, float64 tensors; NaN if an element is NaN."""
    return ((got - want).square().mean().sqrt() / want.square().mean().sqrt().clamp(min=1e-30)).item()
