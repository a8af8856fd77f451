"""Checks of an op's arguments, for its fake function, on every device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from pyxla.errors import ArgumentError, mismatch
from pyxla.op.dtypes import dtype_name

_switched_off = False


@contextmanager
def no_checks() -> Iterator[None]:
    """Lets every Check pass, for tests that give a handler what Python refuses."""
    global _switched_off
    before, _switched_off = _switched_off, True
    try:
        yield
    finally:
        _switched_off = before


class Check:
    """The checks of one op; each raises ArgumentError in the form `op: argument: expected X, got Y`.

    Args:
        op: name of the op, the first word of every message.
        implementation: name of the implementation whose limits are checked; None for the op. The messages name it.
    """

    def __init__(self, op: str, implementation: str | None = None):
        self.op, self._implementation = op, implementation

    def that(self, condition: bool, argument: str, expected: object, got: object, hint: str | None = None) -> None:
        """Raises unless `condition` holds."""
        if not condition and not _switched_off:
            if self._implementation:
                expected = f"{expected} with implementation {self._implementation}"
                hint = hint or f"the op's default takes it: with pyxla.use_implementation({self.op!r}, 'default'): ..."
            raise ArgumentError(mismatch(self.op, argument, expected, got), hint)

    def dtype(
        self,
        argument: str,
        tensor: torch.Tensor,
        expected: Sequence[torch.dtype],
        *,
        reference: Sequence[torch.dtype] = (),
        hint: str | None = None,
    ) -> None:
        """Raises unless the tensor's dtype is one of `expected`, or one that only the reference takes.

        Args:
            argument: name of the argument, for the message.
            tensor: the argument.
            expected: dtypes that the kernel takes.
            reference: dtypes for CPU and CUDA tensors only (float64, for gradcheck and the oracle). XLA tensors are
                checked as meta tensors, for which these are refused.
            hint: the fix, if there is one.
        """
        names = " or ".join(dtype_name(dtype) for dtype in expected)
        allowed = tensor.dtype in expected or (tensor.dtype in reference and tensor.device.type != "meta")
        self.that(allowed, argument, f"dtype {names}", dtype_name(tensor.dtype), hint)

    def rank(self, argument: str, tensor: torch.Tensor, expected: int, hint: str | None = None) -> None:
        """Raises unless the tensor has `expected` dimensions."""
        self.that(tensor.dim() == expected, argument, f"rank {expected}", f"shape {tuple(tensor.shape)}", hint)

    def shape(self, argument: str, tensor: torch.Tensor, expected: Sequence[int], hint: str | None = None) -> None:
        """Raises unless the tensor's shape is `expected`."""
        got = tuple(tensor.shape)
        self.that(got == tuple(expected), argument, f"shape {tuple(expected)}", f"{got}", hint)

    def finite(self, argument: str, value: float, hint: str | None = None) -> None:
        """Raises for a NaN or an infinity."""
        self.that(math.isfinite(value), argument, "a finite number", value, hint)
