"""Runs an op on every device of a torch_xla mesh, each on its part: manual SPMD around the custom call.

XLA's partitioner cannot look into a custom call: left alone, it gathers the operands and runs the whole call on every
device. Here the operands are split first, the call gets one device's part, and the parts are declared one tensor again.
If the operands are already sharded that way, neither is an operation at run time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from pyxla.errors import ArgumentError, mismatch
from pyxla.op.placements import Sharding
from pyxla.torch_ops.custom_op import CustomOp
from pyxla.torch_xla_patches.mesh import apply_mesh_patches

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh


def shard(op: CustomOp, by: str, mesh: Mesh, axis: str | None = None) -> Callable:
    """Returns a function that runs the op on every device of a mesh, each on its part, without communication.

    The function takes the op's arguments as whole tensors and returns whole tensors that are sharded that way. XLA
    reshards an operand that is sharded otherwise before the call. An operand that is updated in place is not copied if
    `torch_xla.distributed.spmd.mark_sharding` has split it that way. The function can be traced lazily or compiled with
    `torch.compile(backend="openxla")`, and has no gradient. On CPU tensors it is the op's reference.

    Args:
        op: the op, such as `pyxla.find_op("paged_attention")`.
        by: the way to split it, one of `op.shardings`: "heads" or "rows".
        mesh: torch_xla's mesh, made after `torch_xla.runtime.use_spmd()`.
        axis: name of the mesh's axis over which the op is split; needed if the mesh has several.

    Raises:
        ArgumentError: no such way or axis, a mesh whose axes have no names, or SPMD is off. When the function is
            called: a dimension that the number of devices does not divide, or a part that the op does not take.
    """
    import torch_xla.runtime

    if by not in op.shardings:
        ways = ", ".join(sorted(op.shardings)) or "none"
        raise ArgumentError(
            mismatch(op.name, "by", f"one of: {ways}", repr(by)), f"{op.name}.register_sharding adds one"
        )
    if mesh.axis_names is None:
        raise ArgumentError(mismatch(op.name, "mesh", "axes with names", "none"), "Mesh(ids, shape, ('model',))")
    if axis is None and len(mesh.axis_names) == 1:
        axis = mesh.axis_names[0]
    if axis not in mesh.axis_names:
        raise ArgumentError(mismatch(op.name, "axis", f"one of: {', '.join(mesh.axis_names)}", repr(axis)))
    if not torch_xla.runtime.is_spmd():
        hint = "call torch_xla.runtime.use_spmd() before the first tensor"
        raise ArgumentError(mismatch(op.name, "mesh", "torch_xla in SPMD mode", "one device per process"), hint)
    apply_mesh_patches()
    overload, mesh_text = _sharded_op(op, by).overload, text_of(mesh)

    def sharded(*args: Any, **kwargs: Any) -> Any:
        return overload(*args, **kwargs, mesh=mesh_text, axis=axis)

    sharded.__name__, sharded.__doc__ = f"{op.name}_by_{by}", op.__doc__
    return sharded


@cache
def _sharded_op(op: CustomOp, by: str) -> CustomOp:
    """An op that takes the op's arguments, a mesh and an axis; torch.compile traces it as one call."""

    def reference(*arguments: Any) -> Any:
        return op.reference(*arguments[:-2])

    own = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default="", annotation=str)
        for name in ("mesh", "axis")
    ]
    signature = inspect.signature(op.reference, eval_str=True)
    reference.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *own])
    reference.__module__ = op.reference.__module__
    reference.__name__ = f"{op.name.replace('.', '_')}_by_{by}"
    mutates = tuple(slot.name for slot in op.schema.mutated)
    parts = _Parts(op, op.shardings[by])
    sharded = CustomOp(reference, mutates, op.library, lowering=lambda _: parts, results=op.schema.named_results)
    sharded.register_fake(parts.fake)
    return sharded


class _Parts:
    """Lowers a sharded op: cuts the operands, emits the op's custom call on one device's part, joins the results."""

    def __init__(self, op: CustomOp, sharding: Sharding):
        self._op, self._sharding = op, sharding

    def fake(self, *arguments: Any) -> Any:
        """The op's checks on one device's part, and the whole results."""
        *own, mesh, axis = arguments
        count = mesh_of(mesh).shape()[axis]
        for slot, dimension in zip(self._op.schema.tensors, self._sharding.operands, strict=True):
            tensor = own[slot.index]
            if tensor is not None:
                own[slot.index] = tensor.new_empty(self._part(slot.name, tensor.shape, dimension, count))
        results = self._op.infer_results(tuple(own))
        dimensions = self._sharding.results[len(self._op.schema.mutated) :]
        whole = [
            result.new_empty(_whole(result.shape, dimension, count))
            for result, dimension in zip(results, dimensions, strict=True)
        ]
        return None if not whole else whole[0] if len(whole) == 1 else tuple(whole)

    def find_call(self, arguments: tuple) -> Callable[[list[torch.Tensor]], Any]:
        """Like `Lowering.find_call`; only the operands change from call to call."""
        constants = [None if isinstance(value, torch.Tensor) else value for value in arguments]
        places = [i for i, value in enumerate(arguments) if isinstance(value, torch.Tensor)]

        def emit(operands: list[torch.Tensor]) -> Any:
            values = list(constants)
            for place, operand in zip(places, operands, strict=True):
                values[place] = operand
            return self.emit(*values)

        return emit

    def emit(self, *arguments: Any) -> Any:
        """The results of the op's custom call, as whole tensors; updated operands before the others."""
        *own, mesh_text, axis = arguments
        mesh = mesh_of(mesh_text)
        count = mesh.shape()[axis]
        for slot, dimension in zip(self._op.schema.tensors, self._sharding.operands, strict=True):
            if own[slot.index] is not None:
                self._part(slot.name, own[slot.index].shape, dimension, count)
                own[slot.index] = to_part(own[slot.index], mesh, dimension, axis)
        results = self._op.emit(*own)
        parts = zip(results if isinstance(results, tuple) else (results,), self._sharding.results, strict=True)
        whole = [to_whole(part, mesh, dimension, axis) for part, dimension in parts]
        return whole[0] if len(whole) == 1 else tuple(whole)

    def _part(self, name: str, shape: torch.Size, dimension: int | None, count: int) -> list[int]:
        """The sizes of one device's part; raises ArgumentError if it cannot be split into equal parts."""
        if dimension is None:
            return list(shape)
        if not -len(shape) <= dimension < len(shape):
            raise ArgumentError(
                mismatch(self._op.name, name, f"a dimension {dimension} to split", f"shape {tuple(shape)}")
            )
        if shape[dimension] % count:
            expected = f"a size that {count} devices divide in dimension {dimension}"
            raise ArgumentError(mismatch(self._op.name, name, expected, shape[dimension]))
        sizes = list(shape)
        sizes[dimension] //= count
        return sizes


def to_part(tensor: torch.Tensor, mesh: Mesh, dimension: int | None, axis: str) -> torch.Tensor:
    """One device's part of a whole tensor. What is computed from parts is a part, until `to_whole`.

    Args:
        tensor: keeps its sharding.
        mesh: of the devices.
        dimension: what is split; None: each device has the whole.
        axis: of the mesh.
    """
    from torch_xla import _XLAC

    # Annotates a second tensor with the same value.
    operand = tensor.clone()
    _XLAC._xla_annotate_custom_sharding(operand, _op_sharding(mesh, operand.dim(), dimension, axis))
    return _XLAC._spmd_full_to_shard_shape(operand)


def to_whole(part: torch.Tensor, mesh: Mesh, dimension: int | None, axis: str) -> torch.Tensor:
    """The whole tensor of which each device has this part; the arguments as in `to_part`."""
    from torch_xla import _XLAC
    from torch_xla.distributed.spmd import ShardingType

    _XLAC._mark_manual_sharding(part, _XLAC.OpSharding([], [], [], int(ShardingType.MANUAL)))
    shape = _whole(part.shape, dimension, mesh.shape()[axis])
    return _XLAC._spmd_shard_to_full_shape(part, _op_sharding(mesh, part.dim(), dimension, axis), shape, part.dtype)


def text_of(mesh: Mesh) -> str:
    """The mesh as text, for `mesh_of`. torch_xla does not read a shape of NumPy's numbers back."""
    return str(type(mesh)(mesh.device_ids, tuple(map(int, mesh.mesh_shape)), mesh.axis_names))


@cache
def mesh_of(text: str) -> Mesh:
    """The mesh that `text_of` wrote."""
    from torch_xla.distributed.spmd import Mesh

    return Mesh.from_str(text)


def _op_sharding(mesh: Mesh, rank: int, dimension: int | None, axis: str) -> Any:
    spec: list[str | None] = [None] * rank
    if dimension is not None:
        spec[dimension] = axis
    return mesh.get_op_sharding(tuple(spec))


def _whole(shape: torch.Size, dimension: int | None, count: int) -> list[int]:
    sizes = list(shape)
    if dimension is not None:
        sizes[dimension] *= count
    return sizes
