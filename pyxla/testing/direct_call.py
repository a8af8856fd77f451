"""Calls an op's handler through ctypes, without XLA, with the call frame that XLA would pass to it.

An error here is in the op's folder (kernel, launch, handler); an error that occurs only under XLA is on the way there
(lowering, registration, aliasing). The call can be captured in a CUDA graph. Why not the launch function that the
handler calls: it has other C++ arguments in each op, which Python would have to mirror one by one.
"""

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

from pyxla.errors import ArgumentError, LibraryError, PyxlaError, mismatch
from pyxla.library.find import Library, find_library
from pyxla.library.register import check_architecture
from pyxla.op.dtypes import DTYPES
from pyxla.pjrt import cuda_plugin, ffi_c_api
from pyxla.torch_ops.custom_op import CustomOp

__all__ = ["Buffer", "prepare"]


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


def prepare(
    op: CustomOp,
    arguments: dict[str, Any],
    results: Sequence[torch.Tensor | Buffer],
    platform: str = "CUDA",
    *,
    workspace: torch.Tensor | Buffer | None = None,
    library: Library | None = None,
) -> Callable[[int], None]:
    """Prepares one call, which may then be made any number of times.

    Args:
        op: the op.
        arguments: by name; tensors are contiguous CPU tensors (platform "Host"), CUDA tensors, or Buffers.
        results: memory for the results as the op's fake function returns them, without the arguments that are updated
            in place.
        platform: "Host" or "CUDA".
        workspace: op.workspace_bytes of memory; allocated if it is None and the op's operands are tensors.
        library: the library with the handler; None: the one that `find_library` finds.

    Returns:
        A function that takes a CUDA stream (its address; 0 is the default one) and calls the handler. It raises
        PyxlaError with the handler's message.

    Raises:
        ArgumentError: arguments or results that the op does not take.
        LibraryError: no library, or one without this handler or without code for this GPU.
    """
    values = in_order(op, arguments)

    operands = [
        None if values[a.index] is None else _buffer(op, a.name, values[a.index], platform) for a in op.schema.tensors
    ]
    metas = _without_data(op, values, operands)
    updated = [operands[op.schema.tensors.index(a)] for a in op.schema.mutated]
    outputs = [*updated, *_result_buffers(op, op.infer_results(metas), results, platform)]
    size = op.workspace_bytes(metas, platform)
    if size is not None:
        memory = _workspace(op, values, size) if workspace is None else workspace
        outputs.append(_buffer(op, "workspace", memory, platform))
    attributes = {a.name: (a.kind, values[a.index]) for a in op.schema.attributes}
    return _Call(op, _handler(op, platform, library or find_library(op.library)), operands, outputs, attributes)


def _without_data(op: CustomOp, values: tuple, operands: list[Buffer | None]) -> tuple:
    """The arguments with a meta tensor in place of each operand."""
    metas = list(values)
    for argument, operand in zip(op.schema.tensors, operands, strict=True):
        if operand is not None:
            metas[argument.index] = torch.empty(operand.shape, dtype=operand.dtype, device="meta")
    return tuple(metas)


def _result_buffers(
    op: CustomOp, expected: tuple, results: Sequence[torch.Tensor | Buffer], platform: str
) -> list[Buffer]:
    """The memory of the results; raises ArgumentError unless shapes and dtypes are those of the fake function."""
    if len(results) != len(expected):
        raise ArgumentError(mismatch(op.name, "results", f"{len(expected)} results", len(results)))
    buffers = [_buffer(op, f"result {index}", result, platform) for index, result in enumerate(results)]
    for index, (buffer, want) in enumerate(zip(buffers, expected, strict=True)):
        if (buffer.shape, buffer.dtype) != (tuple(want.shape), want.dtype):
            wanted, got = f"{tuple(want.shape)} of {want.dtype}", f"{buffer.shape} of {buffer.dtype}"
            raise ArgumentError(mismatch(op.name, f"result {index}", wanted, got))
    return buffers


def _workspace(op: CustomOp, values: tuple, size: int) -> torch.Tensor:
    """Memory on the device of the operands."""
    device = next((value.device for value in values if isinstance(value, torch.Tensor)), None)
    if device is None:
        raise ArgumentError(mismatch(op.name, "workspace", f"{size} bytes of memory", "none"))
    return torch.empty(size, dtype=torch.uint8, device=device)


def in_order(op: CustomOp, arguments: dict[str, Any]) -> tuple:
    """All arguments of a call in order, with defaults for those that are missing.

    Args:
        op: the op.
        arguments: by name.

    Raises:
        ArgumentError: an argument without default is missing, or the op has no argument of a name.
    """
    names = [argument.name for argument in op.schema.arguments]
    if not set(names) - set(op.schema.defaults) <= set(arguments) <= set(names):
        got = ", ".join(arguments) or "none"
        raise ArgumentError(mismatch(op.name, "arguments", ", ".join(names), got))
    return op.schema.bind((), arguments)


# A GPU also reads pinned memory of the host.
_DEVICES = {"Host": ("cpu",), "CUDA": ("cuda", "cpu")}


def _buffer(op: CustomOp, name: str, value: torch.Tensor | Buffer, platform: str) -> Buffer:
    if isinstance(value, Buffer):
        return value
    devices = _DEVICES.get(platform)
    if devices and value.device.type not in devices:
        expected = f"a tensor on {devices[0]}, whose memory a handler for {platform} takes"
        raise ArgumentError(mismatch(op.name, name, expected, value.device))
    if not value.is_contiguous():
        raise ArgumentError(mismatch(op.name, name, "a contiguous tensor", f"strides {value.stride()}"))
    return Buffer(value.data_ptr(), tuple(value.shape), value.dtype, value)


def _handler(op: CustomOp, platform: str, library: Library) -> int:
    """Address of the handler's execute stage."""
    if platform == "CUDA":
        for gpu in cuda_plugin.gpus():
            check_architecture(library, gpu.capability)
    for handler in library.table.handlers:
        if (handler.target, handler.platform) == (op.target, platform):
            return handler.execute
    have = ", ".join(f"{h.target} on {h.platform}" for h in library.table.handlers)
    raise LibraryError(
        mismatch(op.name, "target", f"{op.target} on {platform}", f"{have} in {library.path}"),
        f"devtool build {op.library}",
    )


class _Call:
    """A call frame and everything that it points to."""

    def __init__(
        self,
        op: CustomOp,
        handler: int,
        operands: Sequence[Buffer | None],
        outputs: Sequence[Buffer],
        attributes: dict[str, tuple[str, Any]],
    ):
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
        context = ctypes.c_void_p(stream)
        self._frame.context = ctypes.addressof(context)
        error = self._handler(ctypes.addressof(self._frame))
        if error:
            raise PyxlaError(_errors.pop(error))

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
    args.value = ctypes.c_void_p.from_address(args.context).value


def _thread_pool_schedule(address: int) -> None:
    args = ffi_c_api.ScheduleArgs.from_address(address)
    _threads().submit(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.task), args.data)


def _thread_pool_num_threads(address: int) -> None:
    args = ffi_c_api.ContextArgs.from_address(address)
    ctypes.c_int64.from_address(args.value).value = _thread_count()


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
        "error_create": _error_create,
    }
    api = ffi_c_api.Api.of(ffi_c_api.Version.of(0, 1), None)
    functions = {name: ffi_c_api.HANDLER(function) for name, function in returns_error.items()}
    functions["error_destroy"] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_error_destroy)
    for name, function in functions.items():
        setattr(api, name, ctypes.cast(function, ctypes.c_void_p).value)
    api._functions = functions
    return api
