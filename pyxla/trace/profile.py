"""XLA's profile of the traced script: opened in its process once XLA is up, closed when enough has run, or at the end.

XLA records one profile at a time, and a second one would fail when it ends. If the script opens one, this one ends.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path
from typing import Any

from pyxla.hlo.dump import executions


class Profile:
    """The one profile of this process.

    Attributes:
        begun: whether `begin` has nothing left to do: the profile runs, has ended, or is not wanted.

    Args:
        folder: folder for its data.
        seconds: how long it may run, counting only time in which graphs run, as each event takes memory; 0 for no
            profile.
    """

    def __init__(self, folder: Path, seconds: float):
        import torch_xla

        self.begun = seconds <= 0
        self._why = "--op-seconds is 0" if self.begun else None
        self._path, self._seconds = folder / f"profile-{os.getpid()}.xspace", seconds
        self._is_up = torch_xla._XLAC._xla_runtime_is_initialized
        self._open = torch_xla._XLAC.profiler.TslProfilerSessionWrapper
        self._session: Any = None
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._give_way(torch_xla._XLAC.profiler)
        os.register_at_fork(after_in_child=self._forget)

    def begin(self) -> None:
        """Begins if XLA's client exists: before that, the profiler has no GPU part."""
        if not self._is_up():
            return
        with self._lock:
            if self.begun:
                return
            self.begun = True
            try:
                self._session = self._open()
            except Exception as error:  # the script must run even if the profiler fails
                self._why = f"XLA's profiler: {error}"
                return
            threading.Thread(target=self._watch, name="devtool trace", daemon=True).start()

    def end(self, why: str | None = None) -> None:
        """Ends the profile and writes its data; no data is written if it has ended, or never begun.

        Args:
            why: the reason for the report, if it ends before the script does.
        """
        with self._lock:
            self.begun = True
            session, self._session = self._session, None
            self._ended.set()
            self._why = self._why or why
            if session is None:
                return
            try:
                self._path.write_bytes(session.stop())
            except Exception as error:
                self._why = f"XLA's profiler: {error}"
                self._path.unlink(missing_ok=True)

    def record(self) -> dict[str, str | None]:
        """Name of the data file, or None; and why the profile ended early, or is missing."""
        written = self._path.is_file()
        return {"file": self._path.name if written else None, "why": self._why}

    def _watch(self) -> None:
        """Ends the profile when graphs have run for long enough: time in which no graph runs costs no memory."""
        ran, seen, last = 0.0, executions(), time.monotonic()
        while not self._ended.wait(min(1.0, self._seconds / 4)):
            count, now = executions(), time.monotonic()
            ran += now - last if count != seen else 0.0
            seen, last = count, now
            if ran >= self._seconds:
                self.end(
                    f"times per op cover the first {self._seconds:g} s of computing: --op-seconds N records longer"
                )

    def _give_way(self, profiler: Any) -> None:
        """Ends the profile when the script opens one itself, or starts a profiler server."""
        why = "the script opens XLA's profiler itself, which serves one at a time: times per op cover what ran before"
        give_way, start_server = self.end, profiler.start_server

        class TslProfilerSessionWrapper(profiler.TslProfilerSessionWrapper):
            def __init__(self, *args: Any) -> None:
                give_way(why)
                super().__init__(*args)

        def start(*args: Any, **kwargs: Any) -> Any:
            self.end(why)
            return start_server(*args, **kwargs)

        profiler.TslProfilerSessionWrapper, profiler.start_server = TslProfilerSessionWrapper, start

    def _forget(self) -> None:
        # A forked child has the session's object, but not its threads. The destructor would wait for locks that these
        # threads hold, so the object is never destroyed.
        if self._session is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._session))
        self.begun, self._session, self._lock = True, None, threading.Lock()
