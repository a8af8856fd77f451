"""Ops of an attention layer on a mesh of devices, each on its heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from pyxla.spmd.shard import shard
from pyxla.torch_ops.custom_op import find_op

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh

# The mesh's axis along which heads lie.
AXIS = "model"


def op_on(mesh: Mesh | None, name: str, by: str) -> Callable:
    """The op of this name: split that way over a mesh, or as it is where there is none.

    Args:
        mesh: torch_xla's mesh with an axis "model", or None.
        name: of the op.
        by: as `pyxla.shard` takes it.

    Raises:
        ArgumentError: as `pyxla.shard`.
    """
    return getattr(torch.ops.xla_gpu, name) if mesh is None else shard(find_op(name), by, mesh, AXIS)


def split(tensor: torch.Tensor, mesh: Mesh | None, dimension: int | None) -> torch.Tensor:
    """The tensor, of which each device of the mesh now holds its part along a dimension; None: the whole.

    Args:
        tensor: on the devices; without a mesh it stays as it is.
        mesh: as above.
        dimension: is cut into as many parts as the axis has devices.
    """
    if mesh is not None:
        import torch_xla

        # What torch_xla.distributed.spmd.mark_sharding does; that looks for jax, and does not find it, at each call.
        sharding = mesh.get_op_sharding(tuple(AXIS if i == dimension else None for i in range(tensor.dim())))
        torch_xla._XLAC._xla_mark_sharding(tensor, sharding)
    return tensor
