"""Several small tensors in one copy to the device: copies run one after the other, behind the step before.

On an H200 each costs a decoder's step 5 us in which nothing else runs (docs/lab/measurements.md).
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
        mesh: as of `PagedKVCache`.

    Returns:
        [elements of all], int32, for `unpack`.

    Raises:
        ArgumentError: no tensor; one of another dtype or elsewhere.
    """
    tensors = list(tensors)
    pack_check.that(len(tensors) > 0, "tensors", "at least one", "none")
    for tensor in tensors:
        pack_check.that(tensor.dtype == torch.int32, "tensors", "int32", dtype_name(tensor.dtype))
        pack_check.that(tensor.device.type == "cpu", "tensors", "tensors on cpu", tensor.device)
    return split(torch.cat([tensor.flatten() for tensor in tensors]).to(device), mesh, None)


def unpack(packed: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The tensors again. Belongs into the function that is compiled: before it each would be a graph of its own.

    Args:
        packed: what `pack` returned.
        shapes: of its tensors, in order.

    Raises:
        ArgumentError: they have more elements than it, or fewer.
    """
    sizes = [math.prod(shape) for shape in shapes]
    unpack_check.that(sum(sizes) == len(packed), "shapes", f"shapes of {len(packed)} elements", sum(sizes))
    return [part.view(shape) for part, shape in zip(packed.split(sizes), shapes, strict=True)]
