"""Runs a project's files in child processes: a crash or a hang costs one test."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tests.outside.suite.files import Suite

SHARD = 25  # tests of one child: a child imports the project first, for some seconds
SCRIPT = "main"  # the name of the one test of a script
_CHILD = Path(__file__).with_name("child.py")
_FATAL = re.compile(r"^F\d{4} |Check failed|Fatal Python error|terminate called|what\(\):")
_OK = (0, 1, 5)  # pytest: all passed, some failed, no tests
_IMPORT_SECONDS = 300


@dataclass
class Results:
    """What is known. `tests`: file -> ids of its tests; `uncollected`: file -> reason; `results`: id -> result."""

    tests: dict[str, list[str]] = field(default_factory=dict)
    uncollected: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict] = field(default_factory=dict)

    def add(self, test: str, outcome: str, reason: str = "", seconds: float = 0.0) -> None:
        self.results[test] = {"outcome": outcome, "reason": reason, "seconds": seconds}

    def left(self, file: str) -> list[str]:
        """The tests of a file that have no result yet."""
        return [test for test in self.tests.get(file, ()) if test not in self.results]

    def unknown(self, file: str) -> bool:
        """Whether it is not known yet which tests a file has."""
        return file not in self.tests and file not in self.uncollected


@dataclass
class Ended:
    """How a child ended: its status, or "hang" or "cut" if it was ended; its events; the end of its output."""

    status: int | str
    events: list[dict]
    output: str

    def last(self, name: str) -> object:
        """The value of the last event of a kind, or None."""
        return next((event[name] for event in reversed(self.events) if name in event), None)

    def why(self) -> str:
        """The lines that tell of a crash, else the last ones."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        fatal = [line for line in lines if _FATAL.search(line)]
        status = f"exit status {self.status}" if isinstance(self.status, int) else self.status
        if isinstance(self.status, int) and self.status < 0:
            status = signal.Signals(-self.status).name
        return f"{status}: {' '.join(fatal[:2] or lines[-3:])}"[:300]


class Runner:
    """Runs what has no result yet.

    Args:
        suite: the tests.
        results: what is known from before; new results are added to it.
        save: called after each child.
        end: the time (time.monotonic) at which all are ended.
    """

    def __init__(self, suite: Suite, results: Results, save: Callable[[], None], end: float):
        self.suite, self.results, self.save, self.end = suite, results, save, end
        self.idle = suite.options.timeout
        self.lock = threading.Lock()

    def run(self, files: list[str], workers: int) -> None:
        """Runs the files. Stops all children if it is interrupted."""
        pool = ThreadPoolExecutor(workers)
        jobs = {pool.submit(self._first, file) for file in files if self.results.unknown(file)}
        jobs |= {job for file in files for job in self._submit(pool, file)}
        try:
            while jobs:
                done = next(as_completed(jobs))
                jobs.remove(done)
                if file := done.result():
                    jobs |= set(self._submit(pool, file))
        except BaseException:
            self.end = 0.0
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _submit(self, pool, file: str) -> list:
        left = self.results.left(file)
        return [pool.submit(self._shard, file, left[i : i + SHARD]) for i in range(0, len(left), SHARD)]

    def _first(self, file: str) -> str | None:
        """Finds the tests of a file and runs the first of them; returns the file if there are more."""
        ended = self._child(file, None)
        tests, uncollected = ended.last("tests"), ended.last("uncollected")
        with self.lock:
            if uncollected is not None:
                self.results.uncollected[file] = uncollected
            elif tests:
                self.results.tests[file] = tests
            elif ended.status in _OK:
                self.results.tests[file] = [f"{file}::{SCRIPT}"] if self.suite.is_script(file) else []
            elif ended.status != "cut":
                self.results.uncollected[file] = ended.why()
        self._take(file, ended)
        return file if self.results.left(file) else None

    def _shard(self, file: str, tests: list[str]) -> None:
        while tests and time.monotonic() < self.end:
            ended = self._child(file, tests)
            self._take(file, ended)
            if ended.status == "cut":
                return
            before, tests = len(tests), [test for test in tests if test not in self.results.results]
            if len(tests) == before:  # it ended before it started any
                for test in tests:
                    self.results.add(test, "crash", f"before the first test: {ended.why()}")
                self.save()

    def _take(self, file: str, ended: Ended) -> None:
        """Adds the results of a child; the test that it had started and not ended is the one that broke it."""
        with self.lock:
            for event in ended.events:
                if "test" in event:
                    self.results.add(event["test"], event["outcome"], event["reason"], event["seconds"])
            started = ended.last("started")
            if started and started not in self.results.results and ended.status != "cut":
                self.results.add(started, "hang" if ended.status == "hang" else "crash", ended.why())
            self.save()

    def _child(self, file: str, tests: list[str] | None) -> Ended:
        with tempfile.TemporaryDirectory(dir=self.suite.scratch) as scratch:
            return self._child_in(Path(scratch), file, tests)

    def _child_in(self, scratch: Path, file: str, tests: list[str] | None) -> Ended:
        events, output = scratch / "events", scratch / "output"
        script = f"{file}::{SCRIPT}"
        if tests == [script]:
            command = [sys.executable, self.suite.root / file]
            events.write_text(json.dumps({"started": script}) + "\n")
        else:
            plugin = self.suite.plugin()
            job = {"path": file, "only": tests, "limit": SHARD, "options": self.suite.pytest_options}
            job["plugin"] = plugin and str(plugin)
            (scratch / "job").write_text(json.dumps(job))
            events.touch()
            command = [sys.executable, "-P", _CHILD, scratch / "job", events]
        environment = os.environ | self.suite.environment(file, scratch)
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(scratch)}
        environment["PJRT_DEVICE"] = self.suite.options.device
        # The helpers of the tests; their own folder comes first in any case.
        paths = [str(self.suite.root / self.suite.path), environment.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        began = time.monotonic()
        with output.open("wb") as stream:
            child = subprocess.Popen(
                command, cwd=self.suite.root, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                status = self._wait(child, events)
            finally:
                _end(child)
        ended = Ended(status, _events(events), output.read_text(errors="replace")[-20_000:])
        if tests == [script] and status in (0, 1):
            outcome, why = ("passed", "") if status == 0 else ("failed", ended.why())
            result = {"test": script, "outcome": outcome, "reason": why, "seconds": round(time.monotonic() - began, 1)}
            ended.events.append(result)
        return ended

    def _wait(self, child: subprocess.Popen, events: Path) -> int | str:
        news, size = time.monotonic(), 0
        while True:
            try:
                return child.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if events.stat().st_size != size:
                news, size = now, events.stat().st_size
            if now > self.end:
                return "cut"
            if now > news + (self.idle if size else _IMPORT_SECONDS):
                return "hang"


def _end(child: subprocess.Popen) -> None:
    """Ends a child and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _events(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
