"""torch.func.vmap over an op: one call of the op for each element of the batch.

Why a rule at all: without one torch takes its own loop, which warns in every call, rejects ops that work in place and
batches of size 0. Why not one call for the whole batch: only the op's author knows which dimensions it may merge.
"""

from __future__ import annotations

from typing import Any

import torch

from pyxla.errors import ArgumentError, mismatch
from pyxla.op.definition import Definition


def register_vmap(op: Definition, overload: Any, library: torch.library.Library) -> None:
    """Registers the rule of an op.

    Args:
        op: its definition.
        overload: its torch op.
        library: the torch.library.Library in which it is defined.
    """

    def rule(info: Any, in_dims: tuple, *args: Any) -> tuple[Any, Any]:
        arguments = op.schema.bind(args, {})
        dims = dict(zip((argument.index for argument in op.schema.arguments), in_dims, strict=False))
        for argument in op.schema.mutated:
            if dims.get(argument.index) is None:
                raise ArgumentError(
                    mismatch(
                        op.name,
                        argument.name,
                        "a batched tensor under vmap, as it is updated in place for each element",
                        "one for all of them",
                    ),
                    f"expand {argument.name} before vmap to a copy per element, and name its dimension in in_dims",
                )
        if info.batch_size == 0:
            return _of_no_calls(op, arguments, dims)
        calls = [
            overload(*(_element(value, dims.get(slot), i) for slot, value in enumerate(arguments)))
            for i in range(info.batch_size)
        ]
        if isinstance(calls[0], torch.Tensor):
            return torch.stack(calls), 0
        if not calls[0]:
            return calls[0], None
        return tuple(map(torch.stack, zip(*calls, strict=True))), (0,) * len(calls[0])

    torch.library.register_vmap(overload, rule, lib=library)


def _element(value: Any, dim: int | None, index: int) -> Any:
    return value if dim is None else value.select(dim, index)


def _of_no_calls(op: Definition, arguments: tuple, dims: dict[int, int | None]) -> tuple[Any, Any]:
    """Results for a batch without elements: shapes and dtypes are those of the fake function."""
    device = next(v.device for v in arguments if isinstance(v, torch.Tensor))
    one = tuple(
        value if not isinstance(value, torch.Tensor) else _without_data(value, dims.get(slot))
        for slot, value in enumerate(arguments)
    )
    results = [torch.empty((0, *r.shape), dtype=r.dtype, device=device) for r in op.infer_results(one)]
    if not results:
        return None, None
    return (results[0], 0) if len(results) == 1 else (tuple(results), (0,) * len(results))


def _without_data(value: torch.Tensor, dim: int | None) -> torch.Tensor:
    shape = list(value.shape)
    if dim is not None:
        del shape[dim]
    return torch.empty(shape, dtype=value.dtype, device="meta")
