"""A product that is parallel by rows on a mesh, and what follows it in a decoder: the sum, the residual and the norm.

Each device has its part of the inputs and of the weight, so its product is a part of a sum. XLA's partitioner would add
the parts by an all-reduce; here fused_all_reduce_rms_norm gets them, so each device computes its product in the manual
region of that op.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from pyxla.nn.on_mesh import AXIS
from pyxla.op.arguments import Check
from pyxla.pjrt.client_options import uses_vmm
from pyxla.spmd.shard import mesh_of, text_of, to_part, to_whole
from pyxla.torch_ops.custom_op import CustomOp, find_op
from pyxla.torch_xla_patches.mesh import apply_mesh_patches

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh

# Limits of the op on a GPU: devices of a sum, and bytes of a part. With more bytes NCCL's ring is faster.
MAX_DEVICES, MAX_BYTES = 8, 512 << 10
# The op's defaults.
CHANNEL, TIMEOUT = 0, 60.0


def row_parallel_norm(mesh: Mesh | None, fused_sums: bool | None = None) -> Callable[..., torch.Tensor]:
    """Returns a function of a product that is parallel by rows, the residual stream and a norm.

    The function takes (x, weight, residual, norm, eps): x [tokens, inputs] and weight [hidden, inputs], on a mesh split
    along the inputs; residual [tokens, hidden], updated in place; norm [hidden] or None. It returns what
    fused_add_rms_norm(linear(x, weight), residual, norm, eps) does, [tokens, hidden], whole on each device.

    Args:
        mesh: torch_xla's mesh with an axis "model", or None.
        fused_sums: whether fused_all_reduce_rms_norm adds the devices' products, where it takes them: up to 512 KiB a
            device, of 2 to 8 devices of one process. Otherwise XLA's all-reduce does. None: on XLA's CPU, and on GPUs
            with PYXLA_ALLOCATOR=vmm, without which a step gains nothing.
    """
    if mesh is None or not has_fused_sums(mesh, fused_sums):
        return _added_by_xla
    apply_mesh_patches()
    overload, mesh_text = _summed_product().overload, text_of(mesh)

    def product_and_norm(
        x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        if residual.numel() * residual.element_size() > MAX_BYTES:
            return _added_by_xla(x, weight, residual, norm, eps)
        return overload(x, weight, residual, norm, eps, mesh_text)

    return product_and_norm


def has_fused_sums(mesh: Mesh | None, fused_sums: bool | None = None) -> bool:
    """Whether the op adds, in a function of `row_parallel_norm` with these arguments, what is small enough for it."""
    import torch_xla.runtime

    if mesh is None or torch_xla.runtime.process_count() > 1 or not 2 <= mesh.shape()[AXIS] <= MAX_DEVICES:
        return False
    if fused_sums is not None:
        return fused_sums
    return torch_xla.runtime.device_type() == "CPU" or uses_vmm()


def _added_by_xla(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, eps: float
) -> torch.Tensor:
    return torch.ops.xla_gpu.fused_add_rms_norm(linear(x, weight), residual, norm, eps)


@cache
def _summed_product() -> CustomOp:
    """The product and the op as one op, which torch.compile traces as one call."""
    op = find_op("fused_all_reduce_rms_norm")

    def fused_all_reduce_rms_norm_of_product(
        x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor | None, eps: float, mesh: str
    ) -> torch.Tensor:
        return op.reference(linear(x, weight)[None], residual, norm, [], eps, CHANNEL, TIMEOUT)

    # Of the package whose op it is.
    fused_all_reduce_rms_norm_of_product.__module__ = op.reference.__module__
    product = _Product(op)
    summed = CustomOp(fused_all_reduce_rms_norm_of_product, ("residual",), op.library, lowering=lambda _: product)
    summed.register_fake(product.fake)
    return summed


class _Product:
    """Lowers it: each device's product and the op's custom call in one manual region."""

    def __init__(self, op: CustomOp):
        self._op, self._check = op, Check("row_parallel_norm")

    def fake(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        residual: torch.Tensor,
        norm: torch.Tensor | None,
        eps: float,
        mesh: str,
    ) -> torch.Tensor:
        """The checks, and an empty result."""
        self._check.rank("x", x, 2)
        self._check.dtype("weight", weight, (x.dtype,))
        self._check.that(
            weight.dim() == 2 and weight.shape[1] == x.shape[1],
            "weight",
            f"shape (hidden, {x.shape[1]})",
            f"{tuple(weight.shape)}",
        )
        count = mesh_of(mesh).shape()[AXIS]
        self._check.that(x.shape[1] % count == 0, "x", f"a size that {count} devices divide", x.shape[1])
        part = x.new_empty(1, x.shape[0], weight.shape[0])
        (out,) = self._op.infer_results((part, residual, norm, groups_of(mesh), eps, CHANNEL, TIMEOUT))
        return out

    def find_call(self, arguments: tuple) -> Callable[[list[torch.Tensor]], Any]:
        """Like `Lowering.find_call`; only the operands change from call to call."""
        constants = arguments[4:]
        has_norm = arguments[3] is not None
        return lambda operands: self.emit(*operands, *(() if has_norm else (None,)), *constants)

    def emit(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        residual: torch.Tensor,
        norm: torch.Tensor | None,
        eps: float,
        mesh: str,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The new residual and the normalised sum."""
        devices = mesh_of(mesh)
        product = linear(to_part(x, devices, 1, AXIS), to_part(weight, devices, 1, AXIS))
        residual, norm = (None if t is None else to_part(t, devices, None, AXIS) for t in (residual, norm))
        results = self._op.emit(product[None], residual, norm, groups_of(mesh), eps, CHANNEL, TIMEOUT)
        return tuple(to_whole(part, devices, None, AXIS) for part in results)


@cache
def groups_of(mesh: str) -> list[int]:
    """For each device of the mesh that `text_of` wrote, by its ordinal, the number of its group on the axis "model"."""
    devices = mesh_of(mesh)
    place, size = devices.axis_names.index(AXIS), devices.shape()[AXIS]
    # In the mesh's order the devices of a group are so far apart.
    distance = math.prod(devices.mesh_shape[place + 1 :])
    firsts = [index - index // distance % size * distance for index in range(len(devices.device_ids))]
    groups = dict(zip(map(int, devices.device_ids), firsts, strict=True))
    return [groups[device] for device in sorted(groups)]
