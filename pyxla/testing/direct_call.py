"""Calls an op's handler through ctypes, without XLA, with the call frame that XLA would pass to it.

An error here is in the op's folder (kernel, launch, handler); an error that occurs only under XLA is on the way there
(lowering, registration, aliasing). The call can be captured in a CUDA graph. Why not the launch function that the
handler calls: it has other C++ arguments in each op, which Python would have to mirror one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyxla.errors import ArgumentError, mismatch
from pyxla.library.find import Library, find_library
from pyxla.library.register import check_architecture, missing_target
from pyxla.pjrt import cuda_plugin
from pyxla.testing.binding_error import handler_error
from pyxla.testing.call_frame import Buffer, HandlerCall
from pyxla.torch_ops.custom_op import CustomOp

__all__ = ["Buffer", "prepare"]


def prepare(
    op: CustomOp,
    arguments: dict[str, Any],
    results: Sequence[torch.Tensor | Buffer],
    platform: str = "CUDA",
    *,
    workspace: torch.Tensor | Buffer | None = None,
    library: Library | None = None,
    check: bool = True,
    device: int = 0,
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
        check: whether `results` must be what the fake function returns, and whether the library must have code for the
            GPU. A call without these checks shows what the handler says of arguments that the fake function refuses, or
            where there is no GPU.
        device: the ordinal that XLA would pass.

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
    outputs = [operands[op.schema.tensors.index(a)] for a in op.schema.mutated]
    buffers = [_buffer(op, f"result {index}", result, platform) for index, result in enumerate(results)]
    if check:
        _check_results(op, op.infer_results(metas), buffers)
    outputs += buffers
    if workspace is None and (size := op.workspace_bytes(metas, platform)) is not None:
        workspace = _workspace(op, values, size)
    if workspace is not None:
        outputs.append(_buffer(op, "workspace", workspace, platform))
    attributes = {a.name: (a.kind, values[a.index]) for a in op.schema.attributes}
    library = library or find_library(op.library, op.namespace)
    if check and platform == "CUDA":
        for gpu in cuda_plugin.gpus():
            check_architecture(library, gpu.capability)
    handler = _handler(op, platform, library)
    return HandlerCall(handler, operands, outputs, attributes, lambda text: handler_error(op, text), device)


def _without_data(op: CustomOp, values: tuple, operands: list[Buffer | None]) -> tuple:
    """The arguments with a meta tensor in place of each operand."""
    metas = list(values)
    for argument, operand in zip(op.schema.tensors, operands, strict=True):
        if operand is not None:
            metas[argument.index] = torch.empty(operand.shape, dtype=operand.dtype, device="meta")
    return tuple(metas)


def _check_results(op: CustomOp, expected: tuple, buffers: Sequence[Buffer]) -> None:
    """Raises ArgumentError unless the results have the shapes and dtypes of the fake function's."""
    if len(buffers) != len(expected):
        raise ArgumentError(mismatch(op.name, "results", f"{len(expected)} results", len(buffers)))
    for index, (buffer, want) in enumerate(zip(buffers, expected, strict=True)):
        if (buffer.shape, buffer.dtype) != (tuple(want.shape), want.dtype):
            wanted, got = f"{tuple(want.shape)} of {want.dtype}", f"{buffer.shape} of {buffer.dtype}"
            raise ArgumentError(mismatch(op.name, f"result {index}", wanted, got))


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


def without_data(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments in order, with meta tensors."""
    return tuple(torch.empty_like(v, device="meta") if isinstance(v, torch.Tensor) else v for v in arguments)


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
    for handler in library.table.handlers:
        if (handler.target, handler.platform) == (op.target, platform):
            return handler.execute
    raise missing_target(op.name, library, op.target, platform)
