"""Copies several small tensors to the device as one: copies run one after the other, after the previous step.

On an H200 each copy costs a decoder's step 5 us in which nothing else runs (docs/lab/measurements/cuda-device.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from pyxla.nn.on_mesh import split
from pyxla.op.arguments import Check
from pyxla.op.dtypes import dtype_name

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh

pack_check, unpack_check = Check("pack"), Check("unpack")


def pack(tensors: Iterable[torch.Tensor], device: torch.device | str, mesh: Mesh | None = None) -> torch.Tensor:
    """Copies tensors to the device as one.

    Args:
        tensors: int32, on the CPU, of any shapes.
        device: an XLA device.
        mesh: as in `PagedKVCache`.

    Returns:
        [elements of all tensors], int32, for `unpack`.

    Raises:
        ArgumentError: no tensor; one with another dtype or on another device.
    """
    tensors = list(tensors)
    pack_check.that(len(tensors) > 0, "tensors", "at least one", "none")
    for tensor in tensors:
        pack_check.that(tensor.dtype == torch.int32, "tensors", "int32", dtype_name(tensor.dtype))
        pack_check.that(tensor.device.type == "cpu", "tensors", "tensors on cpu", tensor.device)
    return split(torch.cat([tensor.flatten() for tensor in tensors]).to(device), mesh, None)


def unpack(packed: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Returns the packed tensors. Call it inside the compiled function: outside, each would be a graph of its own.

    Args:
        packed: the tensor that `pack` returned.
        shapes: the shapes of the packed tensors, in order.

    Raises:
        ArgumentError: the shapes have more or fewer elements than `packed`.
    """
    sizes = [math.prod(shape) for shape in shapes]
    unpack_check.that(sum(sizes) == len(packed), "shapes", f"shapes of {len(packed)} elements", sum(sizes))
    return [part.view(shape) for part, shape in zip(packed.split(sizes), shapes, strict=True)]
