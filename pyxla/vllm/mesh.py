"""The devices that share a model: one process computes on all of them, each on its part, by torch_xla's SPMD."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from pyxla.errors import PyxlaError, mismatch
from pyxla.nn import op_on, row_parallel_norm, split
from pyxla.nn.row_parallel import has_fused_sums
from pyxla.pjrt.cuda_plugin import gpus
from pyxla.pjrt.platform import requested_device

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh

# Of vLLM, and of its additional_config, where the platform puts it.
OPTION = "tensor_parallel_size"
# Of additional_config, from the user.
FUSED_SUMS = "fused_sums"
# vLLM makes the layers and does not know of it. torch_xla too has one for the process.
_mesh: Mesh | None = None
_fused_sums: bool | None = None


def start_mesh(devices: int, fused_sums: bool | None = None) -> None:
    """Makes the mesh of the model that is loaded next; call it before XLA starts.

    Args:
        devices: how many share the model; with 1 there is no mesh.
        fused_sums: as in `pyxla.nn.row_parallel_norm`.

    Raises:
        PyxlaError: there are fewer GPUs, or XLA has another number of devices.
    """
    global _mesh, _fused_sums
    _fused_sums = fused_sums
    if devices == 1:
        _mesh = None
        return
    if requested_device() == "CPU":
        os.environ.setdefault("CPU_NUM_DEVICES", str(devices))
    else:
        there = len(gpus())
        if devices > there:
            raise PyxlaError(
                mismatch("vllm", "tensor_parallel_size", f"at most {there}, the number of visible GPUs", devices)
            )
        os.environ.setdefault("PYXLA_VISIBLE_DEVICES", ",".join(map(str, range(devices))))
    import torch_xla.runtime
    from torch_xla.distributed.spmd import Mesh

    torch_xla.runtime.use_spmd()
    count = torch_xla.runtime.global_runtime_device_count()
    if devices != count:
        hint = "unset CPU_NUM_DEVICES and PYXLA_VISIBLE_DEVICES"
        raise PyxlaError(
            mismatch("vllm", "tensor_parallel_size", f"{count}, the number of XLA's devices", devices), hint
        )
    _mesh = Mesh(list(range(count)), (count,), ("model",))


def devices() -> int:
    """How many devices share the model."""
    return 1 if _mesh is None else _mesh.shape()["model"]


def op(name: str, by: str) -> Callable:
    """The op of this name, split over the devices.

    Args:
        name: its name.
        by: the way to split it, as in `pyxla.shard`.
    """
    return op_on(_mesh, name, by)


def product_and_norm() -> Callable[..., torch.Tensor]:
    """`pyxla.nn.row_parallel_norm` on the devices."""
    return row_parallel_norm(_mesh, _fused_sums)


def adds_in_op() -> bool:
    """Whether an op of pyxla's adds the devices' products in it, where it can."""
    return has_fused_sums(_mesh, _fused_sums)


def annotation(rank: int, dimension: int | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """What returns the same tensor, of a graph that is being traced, split over the devices.

    Args:
        rank: dimensions of the tensor.
        dimension: as in `place`.
    """
    # Written here: torch.compile cannot trace how.
    mesh, spec = str(_mesh), str(tuple("model" if i == dimension else None for i in range(rank)))
    return lambda tensor: torch.ops.xla.aot_mark_sharding(tensor, mesh, spec)


def place(tensor: torch.Tensor, dimension: int | None = None) -> torch.Tensor:
    """Splits an XLA tensor over the devices and returns it.

    Args:
        tensor: an input of a graph. One that is not placed counts as another kind of input once a graph has used it:
            each step would be traced again.
        dimension: what is split; None: nothing, each device holds the whole.
    """
    return split(tensor, _mesh, dimension)
