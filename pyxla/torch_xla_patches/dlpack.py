"""torch_xla 2.9 makes and takes DLPack capsules for memory of the CPU alone, and asks for no stream.

pjrt_proxy tells it that the client's platform is "cpu" (pyxla/autoload.py). Then it makes and takes the capsules of a
GPU too, with the wrong type of device, which is corrected here. 2.8 needs none of this.

Both releases return a capsule with a reference too many: Python never frees it, nor the buffer if nobody consumes it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch

from pyxla.torch_xla_patches import release

# kDLCPU, kDLCUDA.
_CPU, CUDA = 1, 2
_drop_reference = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))


def to_capsule(tensor: torch.Tensor) -> Any:
    """The DLPack capsule of an XLA:CUDA tensor."""
    capsule = _capsule(tensor)
    if release("dlpack") != "2.8":
        _set_device_type(capsule, CUDA)
    return capsule


def await_buffer(tensor: torch.Tensor) -> None:
    """Waits until a tensor that is no pending computation has its data."""
    _capsule(tensor)  # torch_xla makes it when the buffer is ready


def _capsule(tensor: torch.Tensor) -> Any:
    from torch_xla import _XLAC

    capsule = _XLAC._to_dlpack(tensor)
    if sys.getrefcount(capsule) > 2:  # this name, and the argument of getrefcount
        _drop_reference(capsule)
    return capsule


def from_producer(producer: Any, ask_stream: Callable[[int], int]) -> torch.Tensor:
    """The memory of a DLPack producer on a GPU as an XLA:CUDA tensor; XLA waits for the producer's stream.

    Args:
        producer: an object with __dlpack__ and __dlpack_device__.
        ask_stream: gives a stream of XLA's on a device, for which the next import of this thread waits.
    """
    import torch_xla
    import torch_xla.utils.dlpack

    if release("dlpack") == "2.8":
        # It asks XLA for a stream, which waits for the producer's; pjrt_proxy passes it on (pjrt_extensions.cc).
        return torch_xla.utils.dlpack.from_dlpack(producer)
    torch_xla._XLAC._xla_num_devices()  # starts the client, whose devices pjrt_proxy then knows
    _, device = producer.__dlpack_device__()
    capsule = producer.__dlpack__(stream=ask_stream(device))
    _set_device_type(capsule, _CPU)
    return torch_xla._XLAC._from_dlpack(capsule)


def _set_device_type(capsule: Any, device_type: int) -> None:
    """Changes DLManagedTensor.dl_tensor.device.device_type, the field after the pointer to the data."""
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    place = get_pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
    ctypes.c_int32.from_address(place).value = device_type
