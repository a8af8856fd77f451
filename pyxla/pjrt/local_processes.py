"""Which of several processes this is, and which GPU it takes: torchrun and torch_xla.launch start one for each GPU."""

from __future__ import annotations

import os
from typing import NamedTuple

from pyxla.errors import PyxlaError, mismatch


class Process(NamedTuple):
    """This process among those that compute together, and among those of them on this host."""

    rank: int
    count: int
    local_rank: int
    local_count: int


def this_process() -> Process | None:
    """What torchrun or torch_xla's launcher said in the environment; None: this process computes alone.

    torch_xla's launcher sets PJRT_LOCAL_PROCESS_RANK in the process that it has started, after the import of torch_xla.
    The same variables tell torch_xla's coordinator who it waits for.
    """
    if "PJRT_LOCAL_PROCESS_COUNT" not in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ:
        # Other launchers set RANK too, for processes that have nothing to do with each other on XLA's device.
        return None
    local_rank = _first(0, "PJRT_LOCAL_PROCESS_RANK", "LOCAL_RANK")
    local_count = _first(1, "PJRT_LOCAL_PROCESS_COUNT", "LOCAL_WORLD_SIZE")
    process = Process(_first(local_rank, "RANK"), _first(local_count, "WORLD_SIZE"), local_rank, local_count)
    return process if process.count > 1 else None


def gpu_of(process: Process, given: list[int] | None, visible: int) -> int:
    """The number of the GPU that a process takes.

    Args:
        process: one of several.
        given: what PYXLA_VISIBLE_DEVICES lists, the processes' GPUs in their order, or the only one of this process.
        visible: how many GPUs CUDA_VISIBLE_DEVICES leaves.

    Raises:
        PyxlaError: there are fewer GPUs than processes on this host.
    """
    if given is not None and len(given) == 1:
        return given[0]
    numbers = list(range(visible)) if given is None else given
    if len(numbers) < process.local_count:
        raise PyxlaError(
            mismatch("CUDA", "device", f"a GPU for each of {process.local_count} processes", f"{len(numbers)}"),
            "start fewer, make more visible, or name the GPU of each process in its PYXLA_VISIBLE_DEVICES",
        )
    return numbers[process.local_rank]


def _first(default: int, *names: str) -> int:
    for name in names:
        if name in os.environ:
            if not os.environ[name].isdecimal():
                raise PyxlaError(mismatch("CUDA", name, "a number", repr(os.environ[name])))
            return int(os.environ[name])
    return default
