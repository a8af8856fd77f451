"""Queries of torch_xla's lazy tracing for export: which tensors exist, which are pending, what has run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# torch_xla counts these when it starts a graph, lazily traced or compiled, and when the host reads a tensor.
_HOST_METRICS = ("TensorsGraphSize", "RunCachedGraphInputData", "TransferFromDeviceTime")


@contextmanager
def unshared_scalars() -> Iterator[None]:
    """Switches off torch_xla's sharing of one buffer among equal scalars, which would make two equal inputs one."""
    import torch_xla

    cached = torch_xla._XLAC._get_xla_enable_device_data_cache()
    torch_xla._XLAC._set_xla_enable_device_data_cache(False)
    try:
        yield
    finally:
        torch_xla._XLAC._set_xla_enable_device_data_cache(cached)


@contextmanager
def numbers_as_constants() -> Iterator[None]:
    """Traces Python's numbers as constants of the graph; otherwise all but 0 and 1 would be weights."""
    import torch_xla

    torch_xla._XLAC._set_xla_all_numbers_special_scalars(True)
    try:
        yield
    finally:
        torch_xla._XLAC._set_xla_all_numbers_special_scalars(False)


def xla_tensors() -> list[torch.Tensor]:
    """All XLA tensors that Python's garbage collector tracks."""
    plain = (torch.Tensor, torch.nn.Parameter)
    found = [tensor for tensor in gc.get_objects() if type(tensor) in plain and tensor.is_xla]
    for tensor in found:
        # Makes Python the owner. C++ owns a tensor that only C++ refers to, and would free it in spite of this list.
        tensor._fix_weakref()
    return found


def pending_tensors(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors among these that were assigned to since the last sync."""
    import torch_xla

    pending = torch_xla._XLAC._check_tensor_need_materialization(tensors)
    return [tensor for tensor, is_pending in zip(tensors, pending, strict=True) if is_pending]


def data_of(tensor: torch.Tensor) -> list[int]:
    """Ids of the tensors whose data this one depends on: its own id, unless it was assigned to.

    After `x.copy_(y)` x is not pending but has the data of y. Data that several tensors share has the id of the tensor
    that was queried last.
    """
    import torch_xla

    return torch_xla._XLAC._get_tensors_xla_device_data_node([tensor])[0]


def host_events() -> list[int]:
    """How often a graph was started, and how often the host read a tensor, so far."""
    import torch_xla.debug.metrics as metrics

    return [(metrics.metric_data(name) or (0,))[0] for name in _HOST_METRICS]
