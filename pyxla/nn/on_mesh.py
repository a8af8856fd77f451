"""Ops of an attention layer on a mesh of devices, each on its heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from pyxla.spmd.shard import shard
from pyxla.torch_ops.custom_op import find_op

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh

# The mesh's axis over which heads are split.
AXIS = "model"


def op_on(mesh: Mesh | None, name: str, by: str) -> Callable:
    """The op of this name: split over the mesh, or unchanged if there is none.

    Args:
        mesh: torch_xla's mesh with an axis "model", or None.
        name: name of the op.
        by: the way to split it, as in `pyxla.shard`.

    Raises:
        ArgumentError: as `pyxla.shard`.
    """
    return getattr(torch.ops.xla_gpu, name) if mesh is None else shard(find_op(name), by, mesh, AXIS)


def split(tensor: torch.Tensor, mesh: Mesh | None, dimension: int | None) -> torch.Tensor:
    """Splits a tensor over the mesh along a dimension and returns it.

    Args:
        tensor: an XLA tensor; unchanged without a mesh.
        mesh: torch_xla's mesh with an axis "model", or None.
        dimension: the dimension that is split into one part per device of the axis; None: each device holds the whole.
    """
    if mesh is not None:
        import torch_xla

        # As torch_xla.distributed.spmd.mark_sharding does, which searches for jax, in vain, in each call.
        sharding = mesh.get_op_sharding(tuple(AXIS if i == dimension else None for i in range(tensor.dim())))
        torch_xla._XLAC._xla_mark_sharding(tensor, sharding)
    return tensor
