"""A GPU as a device to measure on: events around the replay of a CUDA graph, in torch's or CuPy's memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pyxla.pjrt import cuda_plugin
from pyxla.testing.device_memory import CupyMemory

# Written between two calls: more than the L2 cache of any GPU holds (H200: 50 MiB, B200: 126 MiB).
_OTHER_BYTES = 256 << 20
_COPY_BYTES = 2 << 30
_MATRIX = 8192


def cuda_device() -> TorchCudaDevice | CupyCudaDevice:
    """The GPU through torch if it has CUDA, which the peers need too; else through CuPy.

    Raises:
        PyxlaError: no GPU, or neither torch with CUDA nor CuPy.
    """
    cuda_plugin.gpus()
    return TorchCudaDevice() if torch.cuda.is_available() else CupyCudaDevice()


@dataclass(frozen=True, eq=False)
class _Replay:
    """A captured graph, and the launches that were captured, whose memory each replay reads and writes."""

    replay: Callable[[], None]
    launches: Sequence[Callable[[int], None]]

    def __call__(self) -> None:
        self.replay()


class Lead:
    """How often other data is written before a call, so that the call waits only for the GPU.

    While the GPU writes, the host gets ahead and enqueues the call. One write is enough, unless the call takes the host
    longer, as some peers' Python does. If the call makes the host wait for the GPU, no number of writes is enough.
    """

    most = 16  # 1 ms on an H200

    def __init__(self) -> None:
        # Weak keys: a call that is no longer used must not keep its operands alive.
        self._writes: weakref.WeakKeyDictionary[Callable[[], Any], int] = weakref.WeakKeyDictionary()

    def seconds(self, call: Callable[[], Any], sample: Callable[[int], tuple[float, bool]]) -> float:
        """A sample of a call, repeated with twice the writes if the host was not ahead.

        Args:
            call: the call that is timed.
            sample: makes the call after this many writes; returns its seconds, and whether the host was ahead.
        """
        while True:
            writes = self._writes.get(call, 1)
            seconds, is_ahead = sample(writes)
            if is_ahead or writes >= self.most:
                return seconds
            self._writes[call] = 2 * writes


class _CudaDevice:
    """What both devices share; the attributes are those of HostDevice."""

    platform, kind = "CUDA", "cuda"
    step_seconds, step_bytes = 0.002, 8 << 30
    how = "replayed as a CUDA graph"
    cold = f"{_OTHER_BYTES >> 20} MiB written before each call"

    def __init__(self) -> None:
        (major, minor), driver = cuda_plugin.gpus()[0].capability, cuda_plugin.driver_version()
        self.about = {
            "kind": self.kind,
            "name": cuda_plugin.gpus()[0].name,
            "capability": f"{major}.{minor}",
            "driver": f"CUDA {driver[0]}.{driver[1]}",
        }


class TorchCudaDevice(_CudaDevice):
    """The GPU that torch calls cuda:0, on torch's current stream."""

    without_peers = None

    def __init__(self) -> None:
        super().__init__()
        self.peers = torch.device("cuda", 0)
        self._other_data = torch.empty(_OTHER_BYTES, dtype=torch.uint8, device=self.peers)
        self._lead = Lead()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A dense copy in this device's memory."""
        return tensor.contiguous().to(self.peers)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory with all bits set: NaN in every float dtype, so that an element that is not written is detected."""
        made = torch.empty(tuple(shape), dtype=dtype, device=self.peers)
        made.reshape(-1).view(torch.uint8).fill_(0xFF)
        return made

    def read(self, array: torch.Tensor) -> torch.Tensor:
        """The array as a tensor."""
        return array

    def run(self, launch: Callable[[int], None]) -> None:
        """Makes a raw call and waits for it, so that the work of a kernel's first launch is not captured later."""
        launch(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()

    def bind(self, launches: Sequence[Callable[[int], None]]) -> Callable[[], None]:
        """These raw calls one after the other, captured as a CUDA graph."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for launch in launches:
                launch(torch.cuda.current_stream().cuda_stream)
        return _Replay(graph.replay, launches)

    def seconds(self, call: Callable[[], Any], *, cold: bool) -> float:
        """Seconds of GPU time that a call takes; `cold`: with other data in the L2 cache."""

        def sample(writes: int) -> tuple[float, bool]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(writes):
                self.write_other_data()
            start.record()
            call()
            end.record()
            is_ahead = not start.query()
            end.synchronize()
            return start.elapsed_time(end) * 1e-3, is_ahead

        return self._lead.seconds(call, sample) if cold else sample(0)[0]

    def write_other_data(self) -> None:
        """As HostDevice.write_other_data."""
        self._other_data.zero_()

    def copy_rate(self) -> tuple[Callable[[], Any], int, str]:
        """As HostDevice.copy_rate."""
        source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device=self.peers)
        target = torch.empty_like(source)
        return lambda: target.copy_(source), 2 * _COPY_BYTES, f"a copy of {_COPY_BYTES >> 20} MiB by torch"

    def matrix_rate(self) -> tuple[Callable[[], Any], int, str]:
        """As HostDevice.matrix_rate."""
        a, b = (torch.randn(_MATRIX, _MATRIX, device=self.peers).bfloat16() for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.matmul(a, b, out=out), 2 * _MATRIX**3, f"a bfloat16 product of {_MATRIX}^3 by torch"


class CupyCudaDevice(CupyMemory, _CudaDevice):
    """The GPU if torch has no CUDA: CuPy's memory, and a separate stream."""

    peers = None

    def __init__(self) -> None:
        CupyMemory.__init__(self)
        _CudaDevice.__init__(self)
        self._other_data = self._memory(_OTHER_BYTES)
        self.without_peers = f"torch {torch.__version__} sees no GPU"

    def bind(self, launches: Sequence[Callable[[int], None]]) -> Callable[[], None]:
        """These raw calls one after the other, captured as a CUDA graph."""
        self._cupy.cuda.runtime.deviceSynchronize()
        with self._stream:
            self._stream.begin_capture()
            for launch in launches:
                launch(self._stream.ptr)
            graph = self._stream.end_capture()
        return _Replay(lambda: graph.launch(self._stream), launches)

    def seconds(self, call: Callable[[], Any], *, cold: bool) -> float:
        """As TorchCudaDevice.seconds."""
        start, end = (self._cupy.cuda.Event() for _ in range(2))
        if cold:
            self.write_other_data()
        start.record(self._stream)
        call()
        end.record(self._stream)
        end.synchronize()
        return self._cupy.cuda.get_elapsed_time(start, end) * 1e-3

    def write_other_data(self) -> None:
        """As HostDevice.write_other_data."""
        self._other_data.memset_async(0, _OTHER_BYTES, self._stream)

    def copy_rate(self) -> tuple[Callable[[], Any], int, str]:
        """As HostDevice.copy_rate."""
        source, target = self._memory(_COPY_BYTES), self._memory(_COPY_BYTES)
        source.memset(1, _COPY_BYTES)

        def copy() -> None:
            target.copy_from_device_async(source, _COPY_BYTES, self._stream)

        return copy, 2 * _COPY_BYTES, f"a copy of {_COPY_BYTES >> 20} MiB by CUDA"

    def matrix_rate(self) -> tuple[Callable[[], Any], int, str]:
        """As HostDevice.matrix_rate; CuPy has no bfloat16 product, and float16 is as fast."""
        a, b = (self._cupy.random.standard_normal((_MATRIX, _MATRIX), dtype="float32").astype("float16") for _ in "ab")
        out = self._cupy.empty_like(a)
        self._cupy.cuda.runtime.deviceSynchronize()

        def product() -> None:
            with self._stream:
                self._cupy.matmul(a, b, out=out)

        return product, 2 * _MATRIX**3, f"a float16 product of {_MATRIX}^3 by CuPy"
