"""The CPU as a device to measure on."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pyxla.testing.device_memory import HostMemory

# Used if the system does not report the size of its last-level cache.
_CACHE_BYTES = 64 << 20


class HostDevice(HostMemory):
    """Calls handlers of platform Host on torch's CPU tensors, and times them by the clock.

    Attributes:
        platform: the platform of the handlers.
        kind: "cpu".
        how: how it makes raw calls, for the record.
        peers: torch's device for the peers, if torch has one.
        without_peers: why torch has none.
        about: the properties that identify the machine.
        cold: how caches are made cold, for the record.
        step_seconds: how long a step of several calls should take, so that its start-up does not matter.
        step_bytes: how much memory the arguments of a step may take.
    """

    platform: str = "Host"
    kind: str = "cpu"
    how: str = "called by Python, its threads in place of XLA's"
    peers: torch.device | None = torch.device("cpu")
    without_peers: str | None = None
    step_seconds: float = 0.02
    step_bytes: int = 1 << 30

    def __init__(self) -> None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._cache = _last_level_cache()
        self._other_data = torch.zeros(self._cache * 5 // 4, dtype=torch.uint8)
        self.about = {"kind": self.kind, "name": cpu_name(), "threads": torch.get_num_threads()}
        self.cold = f"{self._other_data.nbytes >> 20} MiB written before each call, the last-level cache has "
        self.cold += f"{self._cache >> 20} MiB"

    def bind(self, launches: Sequence[Callable[[int], None]]) -> Callable[[], None]:
        """These raw calls one after the other, as one call."""

        def call() -> None:
            for launch in launches:
                launch(0)

        return call

    def seconds(self, call: Callable[[], Any], *, cold: bool) -> float:
        """Seconds that a call takes; `cold`: with other data in the caches."""
        if cold:
            self.write_other_data()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def write_other_data(self) -> None:
        """Makes the caches cold. Its own time depends on no kernel, so it shows whether the machine is slower."""
        self._other_data.fill_(1)

    def copy_rate(self) -> tuple[Callable[[], Any], int, str]:
        """A large copy: the call, the bytes that it reads and writes, and what it is."""
        source = torch.ones(max(self._cache * 5 // 4, 256 << 20), dtype=torch.uint8)
        target = torch.zeros_like(source)
        what = f"a copy of {source.nbytes >> 20} MiB by torch"
        return lambda: target.copy_(source), 2 * source.nbytes, what

    def matrix_rate(self) -> tuple[Callable[[], Any], int, str]:
        """A matrix product: the call, its floating-point operations, and what it is."""
        size = 1536
        a, b = torch.randn(size, size), torch.randn(size, size)
        out = torch.empty_like(a)
        return lambda: torch.matmul(a, b, out=out), 2 * size**3, f"a float32 product of {size}^3 by torch"


def cpu_name() -> str:
    """The system's name for the processor."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0].strip() if names else platform.machine()


def _last_level_cache() -> int:
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found = [int(size[:-1]) * units[size[-1]] for size in sizes if size[:-1].isdecimal() and size[-1] in units]
    return max(found, default=_CACHE_BYTES)
