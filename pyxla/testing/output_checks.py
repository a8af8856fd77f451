"""The checks of what a call returns and leaves alone, whatever the numbers: declared results, operands, bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pyxla.op.dtypes import dtype_name
from pyxla.testing.direct_call import in_order, without_data
from pyxla.torch_ops.custom_op import CustomOp


def output_names(op: CustomOp) -> list[str]:
    """The names of what a call writes: first the arguments that it updates, then its results."""
    return [*(a.name for a in op.schema.mutated), *op.schema.result_names]


def check_declared_results(op: CustomOp, arguments: dict[str, Any], reference: Sequence[torch.Tensor]) -> None:
    """The schema, the fake function and the reference agree on the number of results, their shapes and dtypes.

    Args:
        op: the op.
        arguments: by name, CPU tensors.
        reference: what the reference returned for these arguments in float64: first the updated arguments.

    Raises:
        AssertionError: which of them disagree, and on which result.
    """
    fake = op.infer_results(without_data(in_order(op, arguments)))
    results, names = reference[len(op.schema.mutated) :], op.schema.result_names
    if not len(names) == len(fake) == len(results):
        raise AssertionError(
            f"{op.name}: results: the schema has {len(names)}, the fake function returns {len(fake)}, "
            f"the reference {len(results)}"
        )
    for name, declared, got in zip(names, fake, results, strict=True):
        where = f"{op.name}: {name}"
        for source, value in (("fake function", declared), ("reference", got)):
            assert isinstance(value, torch.Tensor), f"{where}: expected a tensor from the {source}, got {value!r}"
        assert declared.shape == got.shape, (
            f"{where}: the fake function returns shape {tuple(declared.shape)}, the reference {tuple(got.shape)}"
        )
        # A float of the reference is float64 here, whatever the op declares.
        alike = declared.dtype == got.dtype or (declared.is_floating_point() and got.dtype == torch.float64)
        assert alike, (
            f"{where}: the fake function returns {dtype_name(declared.dtype)}, the reference {dtype_name(got.dtype)}"
        )


def check_unchanged(op: CustomOp, before: dict[str, Any], after: dict[str, Any]) -> None:
    """A call changed no operand, bit for bit, except those that the schema declares as updated.

    Args:
        op: the op.
        before, after: the arguments by name, CPU tensors.
    """
    updated = {a.name for a in op.schema.mutated}
    for name, value in before.items():
        if isinstance(value, torch.Tensor) and name not in updated:
            assert same_bits(value, after[name]), (
                f"{op.name}: {name}: expected no change, as the schema does not declare it as mutated, got other values"
            )


def check_same_bits(op: CustomOp, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> None:
    """Two equal calls returned the same bits."""
    for name, one, other in zip(output_names(op), first, second, strict=True):
        assert same_bits(one, other), (
            f"{op.name}: {name}: expected the same bits from the same call, got others "
            "(Case(repeatable=False) allows that)"
        )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two CPU tensors have one shape and one dtype, and the same bytes: a NaN is equal to itself."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    # As integers of the same size: torch compares bytes one at a time.
    dtype = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(one.itemsize, torch.uint8)
    return torch.equal(*(tensor.contiguous().reshape(-1).view(dtype) for tensor in (one, other)))
