"""One raw call of an op on copies of CPU tensors, in CPU memory or in CuPy's.

Each array on the GPU is a separate allocation, not a slice of a pool, so that compute-sanitizer detects an access past
its end. Results start with all bits set, NaN in every float dtype, so that an element that is not written is detected.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from pyxla.errors import PyxlaError, mismatch
from pyxla.library.find import Library, find_library
from pyxla.pjrt import cuda_plugin
from pyxla.testing.call_frame import Buffer
from pyxla.testing.direct_call import in_order, prepare, without_data
from pyxla.torch_ops.custom_op import CustomOp

__all__ = ["CupyMemory", "HostMemory", "call_raw"]


def call_raw(
    op: CustomOp,
    arguments: dict[str, Any],
    platform: str,
    *,
    results: Sequence[tuple[Sequence[int], torch.dtype]] | None = None,
) -> tuple[dict[str, Any], tuple[torch.Tensor, ...]]:
    """Calls the op's handler once.

    Args:
        op: the op.
        arguments: by name, tensors of any strides; they are not changed.
        platform: "Host" or "CUDA".
        results: (shape, dtype) of each result, for arguments that the fake function refuses; None: as it returns them.

    Returns:
        The arguments after the call, with CPU tensors, and what the handler wrote: first the arguments that it updated
        in place, then the results.

    Raises:
        ArgumentError: the op does not take these arguments.
        PyxlaError: the handler's own error, or no CuPy or GPU.
    """
    memory = HostMemory() if platform == "Host" else CupyMemory()
    call = call_in(memory, op, arguments, platform, results=results, check=results is None)
    memory.run(call.launch)
    after = {n: memory.read(call.operands[n]) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    return after, (*(after[a.name] for a in op.schema.mutated), *map(memory.read, call.results))


class CallInMemory(NamedTuple):
    """A prepared call and its memory; `operands` are the arguments by name, and `workspace` may be None."""

    launch: Callable[[int], None]
    operands: dict[str, Any]
    results: list
    workspace: Any


def call_in(
    memory: HostMemory | CupyMemory,
    op: CustomOp,
    arguments: dict[str, Any],
    platform: str,
    *,
    results: Sequence[tuple[Sequence[int], torch.dtype]] | None = None,
    library: Library | None = None,
    check: bool = True,
    device: int = 0,
) -> CallInMemory:
    """Prepares a call on copies of the arguments.

    Args:
        memory: where the copies, the results and the workspace are.
        op, arguments, platform, results: as in `call_raw`.
        library: with the handler; None: the one that `find_library` finds.
        check, device: as in `direct_call.prepare`.
    """
    operands = {n: memory.copy(v) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    metas = without_data(in_order(op, arguments))
    inferred = [(t.shape, t.dtype) for t in op.infer_results(metas)] if results is None else results
    written = [memory.empty(shape, dtype) for shape, dtype in inferred]
    size = op.workspace_bytes(metas, platform) if results is None else 0 if op.has_workspace else None
    workspace = None if size is None else memory.empty((size,), torch.uint8)
    library = library or loaded_library(op)
    launch = prepare(op, operands, written, platform, workspace=workspace, library=library, check=check, device=device)
    return CallInMemory(launch, operands, written, workspace)


@functools.cache
def loaded_library(op: CustomOp) -> Library:
    """As `find_library`, which compares the digest: once, as a process cannot replace a library that it has loaded."""
    return find_library(op.library, op.namespace)


class HostMemory:
    """CPU memory, as tensors of torch's."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A dense copy of a tensor on any device."""
        return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An array with all bits set: NaN in every float dtype, so that an element that is not written shows."""
        made = torch.empty(tuple(shape), dtype=dtype)
        made.reshape(-1).view(torch.uint8).fill_(0xFF)
        return made

    def read(self, array: torch.Tensor) -> torch.Tensor:
        """The array as a tensor."""
        return array

    def run(self, launch: Callable[[int], None]) -> None:
        """Makes a raw call and waits for its end."""
        launch(0)

    def submit(self, launch: Callable[[int], None]) -> None:
        """Makes a raw call, for whose end `read` waits."""
        launch(0)


class CupyMemory:
    """GPU memory of CuPy's, and a stream.

    Args:
        place: which GPU becomes this thread's; with fewer GPUs than places they share one.
    """

    def __init__(self, place: int = 0) -> None:
        cuda_plugin.gpus()  # loads the driver, which CuPy and the op's library open by name
        try:
            import cupy
        except ImportError as error:
            raise PyxlaError(
                mismatch("raw call", "CuPy", "an importable one", error), "PYXLA_SET=cuda13 bin/devtool"
            ) from error
        self._cupy = cupy
        cupy.cuda.Device(place % cupy.cuda.runtime.getDeviceCount()).use()
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def copy(self, tensor: torch.Tensor) -> Buffer:
        """As HostMemory.copy, on the GPU."""
        source = tensor.contiguous()
        buffer = self._allocate(source.shape, source.dtype)
        if source.nbytes:
            buffer.owner.copy_from_host(source.data_ptr(), source.nbytes)
        return buffer

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Buffer:
        """As HostMemory.empty, on the GPU."""
        buffer = self._allocate(shape, dtype)
        if size := buffer.owner.mem.size:
            buffer.owner.memset(0xFF, size)
        return buffer

    def read(self, array: Buffer) -> torch.Tensor:
        """The array as a CPU tensor, once the GPU has finished its work."""
        self._cupy.cuda.runtime.deviceSynchronize()
        own = torch.empty(array.shape, dtype=array.dtype)
        if own.nbytes:
            array.owner.copy_to_host(own.data_ptr(), own.nbytes)
        return own

    def run(self, launch: Callable[[int], None]) -> None:
        """As HostMemory.run."""
        self._cupy.cuda.runtime.deviceSynchronize()
        launch(self._stream.ptr)
        self._stream.synchronize()

    def submit(self, launch: Callable[[int], None]) -> None:
        """As HostMemory.submit."""
        launch(self._stream.ptr)

    def _allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Buffer:
        memory = self._memory(math.prod(shape) * dtype.itemsize)
        return Buffer(memory.ptr, tuple(shape), dtype, memory)

    def _memory(self, size: int) -> Any:
        """Memory of its own, not of CuPy's pool."""
        return self._cupy.cuda.MemoryPointer(self._cupy.cuda.Memory(size), 0)
