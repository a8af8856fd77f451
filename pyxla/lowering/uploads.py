"""Copies of tensors to XLA's CPU that still run when a computation needs them.

XLA's CPU client copies a large tensor in the background, and runs a computation that needs it later, on a thread of its
own. A handler's error then stays in the results' buffers: torch_xla 2.8 ends the process when one is read, 2.9 raises
the error there, and a wait for the device raises nothing. If all inputs are ready, the error is raised at the next
wait. So an op waits for its operands and for what they are computed from, and a compiled graph for its inputs.
"""

from __future__ import annotations

from functools import cache

import torch

from pyxla.torch_xla_patches.compiled_graphs import before_each_run

# XLA's CPU client copies smaller tensors at once, larger ones in the background.
_BACKGROUND_COPY_BYTES = 64 * 1024
# DLPack has no form of these, so their copies cannot be awaited.
_WITHOUT_DLPACK = (torch.float8_e4m3fn, torch.float8_e5m2)
# torch_xla's count of buffers when an op last looked for copies among what its operands are computed from.
_buffers_at_last_look: int | None = None


def buffers() -> int | None:
    """How many buffers torch_xla has made so far: each copy to the device adds one, each computation its results."""
    from torch_xla import _XLAC

    return _XLAC._xla_counter_value("CreateDataHandles")


def may_have_copied() -> bool:
    """Whether there may be copies that no op has looked for among what its operands are computed from."""
    return buffers() != _buffers_at_last_look


def await_uploads(tensors: list[torch.Tensor]) -> None:
    """Waits for copies that still run in the background: of these tensors, and of those that they are computed from.

    It does not wait for computations. What tensors are computed from takes long to find out in a large graph, so after
    a copy only the first op looks, when the graph is small.
    """
    global _buffers_at_last_look
    import torch_xla
    import torch_xla.runtime

    if torch_xla.runtime.is_spmd():  # a sharded buffer has no DLPack form
        return
    to_compute = torch_xla._XLAC._check_tensor_need_materialization(tensors)
    ready = [tensor for tensor, is_pending in zip(tensors, to_compute, strict=True) if not is_pending]
    if len(ready) < len(tensors) and may_have_copied():
        _buffers_at_last_look = buffers()
        pending = [tensor for tensor, is_pending in zip(tensors, to_compute, strict=True) if is_pending]
        ready += torch_xla._XLAC._get_tensors_xla_device_data_node(pending)[1]
    _await_copies(ready)


def _await_copies(tensors: list[torch.Tensor]) -> None:
    from torch_xla import _XLAC

    for tensor in filter(copied_in_background, tensors):
        # The result of a step that torch_xla still runs has no buffer yet; the next step waits for it.
        if not _XLAC._is_placecholder(tensor):
            # `_to_dlpack` blocks until the buffer is ready; consume the capsule, or the buffer leaks.
            torch.from_dlpack(_XLAC._to_dlpack(tensor))


def copied_in_background(tensor: torch.Tensor) -> bool:
    """Whether XLA's CPU client copies the tensor after the call that moves it there."""
    return tensor.nbytes > _BACKGROUND_COPY_BYTES and tensor.dtype not in _WITHOUT_DLPACK


@cache
def await_uploads_of_compiled_graphs() -> None:
    """Makes every compiled graph of this process wait, before it runs, for copies of its inputs."""
    import torch_xla.runtime

    if not torch_xla.runtime.is_spmd():
        before_each_run(_await_copies)
