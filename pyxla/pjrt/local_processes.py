"""Which of several processes this is, and which GPU it takes: torchrun and torch_xla.launch start one for each GPU."""

from __future__ import annotations

import atexit
import fcntl
import os
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pyxla.errors import PyxlaError, mismatch

# So long the first process waits for the others at most: one that failed may have left them in a sum that never ends.
LAST_WAIT_S = 30.0


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


@cache  # a second lock would be one that the process itself waits for
def end_last(process: Process) -> None:
    """Lets the first process end after the others of its host, unless it ends by an exception.

    torch_xla's coordinator lives in it, and a process that sees the coordinator vanish ends at once with SIGABRT, also
    at its own end. Call it in each process before its client is created: the processes wait for each other there, so
    all of them have the lock before one ends.
    """
    # The launcher is the parent of them all. The system takes a process's lock away when the process has ended.
    path = Path(tempfile.gettempdir(), f"pyxla-processes-{os.getuid()}-{os.getppid()}")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    if process.rank == 0:
        # Runs before what torch_xla registered when it was imported.
        atexit.register(_wait_for_others, lock, path)


def _wait_for_others(lock: int, path: Path) -> None:
    over = time.monotonic() + (0 if hasattr(sys, "last_value") else LAST_WAIT_S)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= over:
                break
            time.sleep(0.02)
    path.unlink(missing_ok=True)


def _first(default: int, *names: str) -> int:
    for name in names:
        if name in os.environ:
            if not os.environ[name].isdecimal():
                raise PyxlaError(mismatch("CUDA", name, "a number", repr(os.environ[name])))
            return int(os.environ[name])
    return default
