"""The call frame that XLA passes to a handler, made from Python values, and the parts of XLA's API that it calls."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from pyxla.errors import PyxlaError
from pyxla.op.dtypes import DTYPES
from pyxla.pjrt import ffi_c_api

__all__ = ["Buffer"]


@dataclass(frozen=True)
class Buffer:
    """Memory that a handler reads or writes.

    Attributes:
        pointer: address of the first element, in the platform's memory.
        shape, dtype: shape and dtype of the dense, row-major array there.
        owner: the owner of the memory, which the call keeps alive.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    owner: Any = None


class _Context(ctypes.Structure):
    """What the functions of the API here know of a call; XLA's own context is its secret."""

    _fields_ = (("stream", ctypes.c_void_p), ("device", ctypes.c_int32))


class HandlerCall:
    """A call frame and all that it points to, on a device of this ordinal. `error` makes a message's exception."""

    def __init__(
        self,
        handler: int,
        operands: Sequence[Buffer | None],
        outputs: Sequence[Buffer],
        attributes: dict[str, tuple[str, Any]],
        error: Callable[[str], PyxlaError] = PyxlaError,
        device: int = 0,
    ):
        self._error, self._device = error, device
        self._kept: list[Any] = [operands, outputs]
        self._handler = ffi_c_api.HANDLER(handler)
        absent = Buffer(0, (0,), torch.bool)
        self._frame = ffi_c_api.CallFrame.of(
            ctypes.pointer(_api()),
            None,
            ffi_c_api.EXECUTE,
            self._buffers([operand or absent for operand in operands]),
            self._buffers(outputs),
            self._attributes(attributes),
            None,
        )

    def __call__(self, stream: int = 0) -> None:
        context = _Context(stream, self._device)
        self._frame.context = ctypes.addressof(context)
        error = self._handler(ctypes.addressof(self._frame))
        if error:
            raise self._error(_errors.pop(error))

    def _keep(self, value: Any) -> int:
        self._kept.append(value)
        return ctypes.addressof(value)

    def _list(self, addresses: Sequence[int]) -> Any:
        array = (ctypes.c_void_p * len(addresses))(*addresses)
        self._kept.append(array)
        return ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p))

    def _types(self, types: Sequence[int]) -> Any:
        array = (ctypes.c_int * len(types))(*types)
        self._kept.append(array)
        return ctypes.cast(array, ctypes.POINTER(ctypes.c_int))

    def _buffers(self, buffers: Sequence[Buffer]) -> ffi_c_api.Struct:
        addresses = []
        for buffer in buffers:
            dims = (ctypes.c_int64 * len(buffer.shape))(*buffer.shape)
            self._kept.append(dims)
            rank = len(buffer.shape)
            made = ffi_c_api.Buffer.of(DTYPES[buffer.dtype].ffi, buffer.pointer, rank, dims)
            addresses.append(self._keep(made))
        types = self._types([ffi_c_api.BUFFER] * len(buffers))
        return ffi_c_api.Buffers.of(len(buffers), types, self._list(addresses))

    def _attributes(self, attributes: dict[str, tuple[str, Any]]) -> ffi_c_api.Struct:
        # XLA sorts them by name, and handlers look them up in that order.
        made = [
            (self._keep(ffi_c_api.ByteSpan.of(name)), *self._attribute(*attributes[name]))
            for name in sorted(attributes)
        ]
        names, types, values = zip(*made, strict=True) if made else ((), (), ())
        return ffi_c_api.Attributes.of(len(made), self._types(types), self._list(names), self._list(values))

    def _attribute(self, kind: str, value: Any) -> tuple[int, int]:
        """Type and address of an attribute, in the form that pyxla.lowering.stablehlo.attribute writes for XLA."""
        if kind == "str":
            return ffi_c_api.STRING, self._keep(ffi_c_api.ByteSpan.of(value))
        if kind == "bool":
            return ffi_c_api.SCALAR, self._keep(
                ffi_c_api.Scalar(DTYPES[torch.bool].ffi, self._keep(ctypes.c_bool(value)))
            )
        c_type, dtype = (ctypes.c_int64, torch.int64) if kind.startswith("int") else (ctypes.c_double, torch.float64)
        code = DTYPES[dtype].ffi
        if kind in ("int", "float"):
            return ffi_c_api.SCALAR, self._keep(ffi_c_api.Scalar(code, self._keep(c_type(value))))
        items = value if kind.endswith("[]") else [] if value is None else [value]
        data = self._keep((c_type * len(items))(*items))
        return ffi_c_api.ARRAY, self._keep(ffi_c_api.Array(code, len(items), data))


# The functions of the API that a handler calls. An error is a number, the key of its text.
_errors: dict[int, str] = {}
_errors_lock = threading.Lock()


def _error_create(address: int) -> int:
    args = ffi_c_api.ErrorCreateArgs.from_address(address)
    with _errors_lock:
        number = max(_errors, default=0) + 1
        _errors[number] = (args.message or b"").decode(errors="replace")
    return number


def _error_destroy(address: int) -> None:
    _errors.pop(ffi_c_api.MessageArgs.from_address(address).error, None)


def _stream_get(address: int) -> None:
    args = ffi_c_api.ContextArgs.from_address(address)
    args.value = _Context.from_address(args.context).stream


def _thread_pool_schedule(address: int) -> None:
    args = ffi_c_api.ScheduleArgs.from_address(address)
    _threads().submit(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.task), args.data)


def _thread_pool_num_threads(address: int) -> None:
    args = ffi_c_api.ContextArgs.from_address(address)
    ctypes.c_int64.from_address(args.value).value = _thread_count()


def _device_ordinal_get(address: int) -> None:
    args = ffi_c_api.DeviceOrdinalArgs.from_address(address)
    args.device_ordinal = _Context.from_address(args.context).device


def _thread_count() -> int:
    return len(os.sched_getaffinity(0))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_thread_count())


@cache
def _api() -> ffi_c_api.Struct:
    returns_error = {
        "stream_get": _stream_get,
        "thread_pool_schedule": _thread_pool_schedule,
        "thread_pool_num_threads": _thread_pool_num_threads,
        "device_ordinal_get": _device_ordinal_get,
        "error_create": _error_create,
    }
    api = ffi_c_api.Api.of(ffi_c_api.Version.of(0, 1), None)
    functions = {name: ffi_c_api.HANDLER(function) for name, function in returns_error.items()}
    functions["error_destroy"] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_error_destroy)
    for name, function in functions.items():
        setattr(api, name, ctypes.cast(function, ctypes.c_void_p).value)
    api._functions = functions
    return api
