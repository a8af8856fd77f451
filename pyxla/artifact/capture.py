"""What export asks of torch_xla's lazy tracing: which tensors there are, which are pending, what ran meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# What torch_xla counts, at once, when a graph is to run, lazily traced or compiled, and when the host reads a tensor.
_HOST_METRICS = ("TensorsGraphSize", "RunCachedGraphInputData", "TransferFromDeviceTime")


@contextmanager
def unshared_scalars() -> Iterator[None]:
    """torch_xla keeps one buffer for equal scalars: two inputs that have one value in the example would be one."""
    import torch_xla

    cached = torch_xla._XLAC._get_xla_enable_device_data_cache()
    torch_xla._XLAC._set_xla_enable_device_data_cache(False)
    try:
        yield
    finally:
        torch_xla._XLAC._set_xla_enable_device_data_cache(cached)


@contextmanager
def numbers_as_constants() -> Iterator[None]:
    """Python's numbers stand in the graph; else all but 0 and 1 would be weights."""
    import torch_xla

    torch_xla._XLAC._set_xla_all_numbers_special_scalars(True)
    try:
        yield
    finally:
        torch_xla._XLAC._set_xla_all_numbers_special_scalars(False)


def xla_tensors() -> list[torch.Tensor]:
    """All XLA tensors that Python knows."""
    plain = (torch.Tensor, torch.nn.Parameter)
    return [tensor for tensor in gc.get_objects() if type(tensor) in plain and tensor.is_xla]


def pending_tensors(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those of them that were assigned since the last sync."""
    import torch_xla

    pending = torch_xla._XLAC._check_tensor_need_materialization(tensors)
    return [tensor for tensor, is_pending in zip(tensors, pending, strict=True) if is_pending]


def data_of(tensor: torch.Tensor) -> list[int]:
    """Numbers of the tensors whose data this one is made of: its own alone, unless it was assigned to.

    After `x.copy_(y)` x is not pending, it has the data of y. Data that several tensors have is numbered as that of the
    one that was asked about last.
    """
    import torch_xla

    return torch_xla._XLAC._get_tensors_xla_device_data_node([tensor])[0]


def host_events() -> list[int]:
    """How often a graph was to run, and the host read a tensor, so far."""
    import torch_xla.debug.metrics as metrics

    return [(metrics.metric_data(name) or (0,))[0] for name in _HOST_METRICS]
