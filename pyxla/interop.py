"""Shares memory between XLA tensors on a GPU and CuPy arrays or torch CUDA tensors, through DLPack, without a copy.

From XLA: the call runs what is pending and waits for it, so that any stream may read the memory at once. XLA assumes
that a buffer is constant: a write changes all tensors that share it. Keep the array until your stream has read it.
To XLA: XLA waits, on the GPU, for all work that the current stream has so far; the call itself does not block. From
then on the memory belongs to XLA: do not write to it until the tensor is gone.

float8 has no DLPack form, but `tensor.view(torch.uint8)` has. A compiled graph also takes torch's CUDA tensors:
torch_xla copies each through the host, and returns CUDA tensors without a copy. `from_torch` avoids these copies.
"""

from __future__ import annotations

from typing import Any

import torch

from pyxla.errors import ArgumentError, PyxlaError, mismatch
from pyxla.pjrt import proxy
from pyxla.pjrt.platform import requested_device
from pyxla.sync import sync
from pyxla.torch_xla_patches import dlpack

__all__ = ["from_cupy", "from_torch", "to_cupy", "to_torch"]

# XLA's executables assume that their buffers have this alignment in bytes.
_ALIGNMENT = 16
_WITHOUT_DLPACK = (torch.float8_e4m3fn, torch.float8_e5m2)


def to_cupy(tensor: torch.Tensor) -> Any:
    """The tensor's memory as a CuPy array.

    Args:
        tensor: an XLA:CUDA tensor of any shape, without gradient; bfloat16 becomes ml_dtypes.bfloat16.

    Returns:
        cupy.ndarray of the same shape, C-contiguous.

    Raises:
        ArgumentError: another device or dtype, or a tensor that requires a gradient.
        PyxlaError: CuPy is missing, or the computation of the tensor failed.
    """
    cupy = _cupy()
    return cupy.from_dlpack(_Exported(tensor))


def from_cupy(array: Any) -> torch.Tensor:
    """A CuPy array's memory as an XLA:CUDA tensor.

    Args:
        array: cupy.ndarray, C-contiguous, its first element on a 16-byte boundary.

    Raises:
        ArgumentError: not a CuPy array, or one that is not contiguous or aligned.
        PyxlaError: CuPy is missing, or XLA's device is not CUDA.
    """
    cupy = _cupy()
    _require_cuda("array")
    if not isinstance(array, cupy.ndarray):
        raise ArgumentError(mismatch("interop", "array", "a cupy.ndarray", type(array).__name__))
    if not array.flags.c_contiguous:
        hint = "cupy.ascontiguousarray(array)"
        raise ArgumentError(mismatch("interop", "array", "a C-contiguous array", f"strides {array.strides}"), hint)
    _require_alignment("array", array.data.ptr, "array.copy()")
    return dlpack.from_producer(array, proxy.ask_stream)


def to_torch(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of an XLA:CUDA tensor as a torch CUDA tensor, as with `to_cupy`; torch must have CUDA."""
    _require_torch_cuda("tensor")
    return torch.from_dlpack(_Exported(tensor))


def from_torch(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a torch CUDA tensor as an XLA:CUDA tensor, as with `from_cupy`; torch must have CUDA."""
    _require_cuda("tensor")
    if tensor.device.type != "cuda":
        raise ArgumentError(mismatch("interop", "tensor", "a torch tensor on cuda", tensor.device))
    _require_dlpack(tensor)
    if not tensor.is_contiguous():
        got = f"strides {tensor.stride()}"
        raise ArgumentError(mismatch("interop", "tensor", "a contiguous tensor", got), "tensor.contiguous()")
    _require_alignment("tensor", tensor.data_ptr(), "tensor.clone()")
    return dlpack.from_producer(tensor, proxy.ask_stream)


class _Exported:
    """An XLA tensor as a DLPack producer. The host waits before the capsule is made, so that no stream has to."""

    def __init__(self, tensor: torch.Tensor):
        if tensor.device.type != "xla":
            raise ArgumentError(mismatch("interop", "tensor", "a tensor on xla", tensor.device))
        _require_cuda("tensor")
        _require_dlpack(tensor)
        # Even if nothing is pending: the result of a step that still runs has no buffer yet.
        sync()
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return dlpack.to_capsule(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self._tensor.device.index or 0


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        got = f"{type(error).__name__}: {error}"
        raise PyxlaError(
            mismatch("interop", "CuPy", "an importable one", got), "PYXLA_SET=cuda13 bin/devtool"
        ) from error
    return cupy


def _require_cuda(argument: str) -> None:
    device = requested_device()
    if device != "CUDA":
        raise PyxlaError(mismatch("interop", argument, "XLA's device CUDA", device), "set PJRT_DEVICE=CUDA")


def _require_torch_cuda(argument: str) -> None:
    if not torch.cuda.is_available():
        got = f"torch {torch.__version__} that sees none"
        raise PyxlaError(mismatch("interop", argument, "a torch that has CUDA and sees a GPU", got), "use to_cupy")


def _require_dlpack(tensor: torch.Tensor) -> None:
    if tensor.dtype in _WITHOUT_DLPACK:
        got = str(tensor.dtype).removeprefix("torch.")
        hint = "tensor.view(torch.uint8) has the same bytes"
        raise ArgumentError(mismatch("interop", "tensor", "a dtype that DLPack has", got), hint)
    if tensor.requires_grad:
        got = "one that requires a gradient"
        raise ArgumentError(mismatch("interop", "tensor", "a tensor without gradient", got), "tensor.detach()")


def _require_alignment(argument: str, pointer: int, hint: str) -> None:
    if pointer % _ALIGNMENT:
        got = f"address {pointer:#x}"
        raise ArgumentError(mismatch("interop", argument, "memory on a 16-byte boundary", got), f"{hint} has it")
