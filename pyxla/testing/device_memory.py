"""One raw call of an op on copies of CPU tensors, in CPU memory or in CuPy's.

Each array on the GPU is a separate allocation, not a slice of a pool, so that compute-sanitizer detects an access past
its end. Results start with all bits set, NaN in every float dtype, so that an element that is not written is detected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from pyxla.errors import PyxlaError, mismatch
from pyxla.library.find import Library, find_library
from pyxla.testing.direct_call import Buffer, in_order, prepare
from pyxla.torch_ops.custom_op import CustomOp

__all__ = ["call_raw"]


def call_raw(op: CustomOp, arguments: dict[str, Any], platform: str) -> tuple[torch.Tensor, ...]:
    """Calls the op's handler once and returns what it wrote, on the CPU: first the arguments updated in place.

    Args:
        op: the op.
        arguments: by name, tensors of any strides; they are not changed.
        platform: "Host" or "CUDA".

    Raises:
        ArgumentError: the op does not take these arguments.
        PyxlaError: the handler's own error, or no CuPy or GPU.
    """
    memory = _Host() if platform == "Host" else _Cuda()
    copies = {n: memory.copy(v) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    metas = tuple(
        torch.empty_like(v, device="meta") if isinstance(v, torch.Tensor) else v for v in in_order(op, arguments)
    )
    results = tuple(memory.empty(tuple(t.shape), t.dtype, 0xFF) for t in op.infer_results(metas))
    size = op.workspace_bytes(metas, platform)
    workspace = None if size is None else memory.empty((size,), torch.uint8)
    memory.run(prepare(op, copies, results, platform, workspace=workspace, library=_library(op.library)))
    return tuple(map(memory.read, (*(copies[a.name] for a in op.schema.mutated), *results)))


@functools.cache  # a process cannot replace a library that it has loaded: its digest is compared once
def _library(name: str) -> Library:
    return find_library(name)


class _Host:
    def copy(self, tensor: torch.Tensor) -> Buffer:
        own = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
        return Buffer(own.data_ptr(), tuple(own.shape), own.dtype, own)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, byte: int | None = None) -> Buffer:
        own = torch.empty(shape, dtype=dtype)
        if byte is not None:
            _bytes(own).fill_(byte)
        return Buffer(own.data_ptr(), shape, dtype, own)

    def run(self, launch: Callable[[int], None]) -> None:
        launch(0)

    def read(self, buffer: Buffer) -> torch.Tensor:
        return buffer.owner


class _Cuda:
    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise PyxlaError(
                mismatch("raw call", "CuPy", "an importable one", error), "PYXLA_SET=cuda13 bin/devtool"
            ) from error
        self._cuda = cupy.cuda
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def copy(self, tensor: torch.Tensor) -> Buffer:
        source = tensor.contiguous()
        buffer = self.empty(tuple(tensor.shape), tensor.dtype)
        if source.nbytes:
            buffer.owner.copy_from_host(source.data_ptr(), source.nbytes)
        return buffer

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, byte: int | None = None) -> Buffer:
        size = torch.empty(shape, dtype=dtype, device="meta").nbytes
        memory = self._cuda.MemoryPointer(self._cuda.Memory(size), 0)
        if size and byte is not None:
            memory.memset(byte, size)
        return Buffer(memory.ptr, shape, dtype, memory)

    def run(self, launch: Callable[[int], None]) -> None:
        self._cuda.runtime.deviceSynchronize()
        launch(self._stream.ptr)
        self._stream.synchronize()

    def read(self, buffer: Buffer) -> torch.Tensor:
        own = torch.empty(buffer.shape, dtype=buffer.dtype)
        if own.nbytes:
            buffer.owner.copy_to_host(own.data_ptr(), own.nbytes)
        return own


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
