"""Copies of tensors to XLA's CPU that still run when an op needs them."""

from __future__ import annotations

import torch

from pyxla.torch_xla_patches.dlpack import await_buffer

# XLA's CPU client copies smaller tensors at once, larger ones in the background.
_BACKGROUND_COPY_BYTES = 64 * 1024
# DLPack has no form of these, so their copies cannot be awaited.
_WITHOUT_DLPACK = (torch.float8_e4m3fn, torch.float8_e5m2)


def await_uploads(tensors: list[torch.Tensor]) -> None:
    """Waits for copies to XLA's CPU that still run in the background, but not for computations.

    If its inputs are still being copied, a computation runs later, on a thread of XLA's. A handler's error then stays
    in the result's buffer: a read of it ends the process with torch_xla 2.8, and raises with 2.9, where `pyxla.sync()`
    may raise nothing. If its inputs are ready, the next wait raises the error.
    """
    import torch_xla
    import torch_xla.runtime

    if torch_xla.runtime.is_spmd():  # a sharded buffer has no DLPack form
        return
    large = list(filter(copied_in_background, tensors))
    to_compute = torch_xla._XLAC._check_tensor_need_materialization(large)
    for tensor, pending in zip(large, to_compute, strict=True):
        # The result of a step that torch_xla still runs has no buffer yet; the next step waits for it.
        if not pending and not torch_xla._XLAC._is_placecholder(tensor):
            await_buffer(tensor)


def copied_in_background(tensor: torch.Tensor) -> bool:
    """Whether XLA's CPU client copies the tensor after the call that moves it there."""
    return tensor.nbytes > _BACKGROUND_COPY_BYTES and tensor.dtype not in _WITHOUT_DLPACK
