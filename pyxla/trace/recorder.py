"""Runs in the traced script's process: records what only that process knows, as JSON when the process ends.

Nearly everything that `devtool trace` reports is written by torch, torch_xla and XLA themselves, if environment
variables ask for it. They do not say where a value was read whose graph had already run, or which sync waits: for
these, the functions that such calls go through are replaced by ones that count. Dynamo is told to skip the
replacements, so that a compiled function has no additional graph breaks.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from pyxla.library import register
from pyxla.pjrt.platform import requested_device
from pyxla.torch_xla_patches.fallback_counters import FallbackCounter
from pyxla.trace.places import Place, is_library
from pyxla.trace.profile import Profile

# Methods that bring values to the host.
_READS = (
    *("item", "tolist", "numpy", "cpu", "to", "__array__", "__repr__", "__format__"),
    *("__bool__", "__int__", "__float__", "__index__", "__complex__"),
)


class Recorder:
    """Counts calls by their kind and place.

    Attributes:
        calls: (kind, file, line) -> [count, seconds].
        fallbacks: counts the operations that torch_xla ran on the CPU.

    Args:
        profile: the profile, which the first counted call after XLA's start begins.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.calls: dict[tuple[str, str, int], list[float]] = {}
        self.fallbacks = FallbackCounter()
        self._inside = threading.local()

    def counted(self, function: Callable, kind: Callable[[tuple, dict, Any], str | None]) -> Callable:
        """Wraps a function so that its calls are counted under the kind that `kind` returns; None is not counted.

        Args:
            function: the function to call.
            kind: takes the positional arguments, the keyword arguments and the result.
        """
        inside, profile = self._inside, self.profile

        @wraps(function)
        def call(*args, **kwargs):
            if getattr(inside, "busy", False):
                return function(*args, **kwargs)
            inside.busy = True
            if not profile.begun:
                profile.begin()
            started = time.perf_counter()
            try:
                result = function(*args, **kwargs)
            finally:
                inside.busy = False
            name = kind(args, kwargs, result)
            if name is not None:
                self.add(name, time.perf_counter() - started, sys._getframe(1))
            return result

        _leave_alone(call, kind, self.add, _place, profile.begin)
        return call

    def add(self, kind: str, seconds: float, frame: FrameType) -> None:
        """Counts one call.

        Args:
            kind: the kind of the call.
            seconds: how long it took.
            frame: the frame of the caller.
        """
        place = _place(frame)
        if place is not None:
            entry = self.calls.setdefault((kind, *place), [0, 0.0])
            entry[0] += 1
            entry[1] += seconds

    def write(self, folder: Path) -> None:
        """Writes the record of this process.

        Args:
            folder: folder for the file, which is named after the process.
        """
        from torch_xla.debug import metrics

        data = {name: metrics.metric_data(name) for name in metrics.metric_names()}
        record = {
            "device": requested_device(),
            "calls": [
                {"kind": kind, "file": file, "line": line, "count": int(count), "seconds": seconds}
                for (kind, file, line), (count, seconds) in self.calls.items()
            ],
            "fallbacks": self.fallbacks.counts(),
            "profile": self.profile.record(),
            "libraries": {target: str(path) for (target, on), path in register.registered().items() if on == "CUDA"},
            "counters": _counters(),
            "metrics": {name: {"count": d[0], "sum": d[1]} for name, d in data.items() if d},
            "samples": {
                name: [value for _, value in data[name][2]] for name in ("CompileTime", "ExecuteTime") if data.get(name)
            },
        }
        text = json.dumps(record)
        path = folder / f"record-{os.getpid()}.json"
        path.with_suffix(".part").write_text(text)
        path.with_suffix(".part").rename(path)


def start(folder: Path, op_seconds: float) -> None:
    """Begins to count in this process; the record is written when the process ends, also after an exception.

    Args:
        folder: folder for the record.
        op_seconds: how many seconds of computing XLA's profile may cover; 0 for no profile.
    """
    import torch_xla

    recorder = Recorder(Profile(folder, op_seconds))
    for name in _READS:
        method = getattr(torch.Tensor, name, None)
        if method is not None:
            setattr(torch.Tensor, name, recorder.counted(method, _read(name)))
    xlac = torch_xla._XLAC
    wait = xlac._xla_wait_device_ops
    xlac._xla_step_marker = recorder.counted(xlac._xla_step_marker, _sync)
    xlac._xla_wait_device_ops = recorder.counted(wait, lambda *_: "wait_device_ops")
    sys.excepthook = partial(_show_without_recorder, sys.excepthook)
    atexit.register(_write_in, os.getpid(), recorder, folder, wait)


def _write_in(process: int, recorder: Recorder, folder: Path, wait: Callable) -> None:
    # A forked child ends through the same function, with its parent's counts.
    if os.getpid() == process:
        if recorder.profile.begun:
            # Graphs that still run are part of the profile. The recorder ignores their errors.
            with contextlib.suppress(Exception):
                wait([])
        recorder.profile.end()
        recorder.write(folder)


def _counters() -> dict[str, int]:
    from torch_xla.debug import metrics

    return {name: metrics.counter_value(name) or 0 for name in metrics.counter_names()}


def _show_without_recorder(
    show: Callable, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Shows an uncaught exception without this module's frames."""
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _without_recorder(one.__traceback__)
            waiting += [one.__cause__, one.__context__]
    show(kind, error, error.__traceback__)


def _without_recorder(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != __file__:
            kept.append(trace)
        trace = trace.tb_next
    for entry, following in zip(kept, [*kept[1:], None], strict=True):
        entry.tb_next = following
    return kept[0] if kept else None


def _read(name: str) -> Callable[[tuple, dict, Any], str | None]:
    """The kind of a call of this method: a read, if an XLA tensor's values came to the host."""

    def kind(args: tuple, kwargs: dict, result: Any) -> str | None:
        tensor = args[0]
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "xla":
            return None
        if name == "to" and result.device.type == "xla":
            return None
        return f"read {name}"

    return kind


def _sync(args: tuple, kwargs: dict, result: Any) -> str:
    return "sync wait" if kwargs.get("wait", args[2] if len(args) > 2 else True) else "sync"


def _place(frame: FrameType | None) -> Place | None:
    """The innermost line that is not a library's; None for calls that torch.compile makes itself."""
    while frame is not None and is_library(frame.f_code.co_filename):
        if frame.f_code.co_filename.endswith("dynamo_bridge.py"):
            return None
        frame = frame.f_back
    return frame and (frame.f_code.co_filename, frame.f_lineno)


def _leave_alone(*functions: Callable) -> None:
    from torch._dynamo.eval_frame import skip_code

    for function in (*functions, is_library):
        skip_code(getattr(function, "__func__", function).__code__)
