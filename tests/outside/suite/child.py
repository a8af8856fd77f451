"""Runs tests of one file with pytest, or the file as a script, and writes a line of JSON per event.

python -P child.py JOB EVENTS

JOB is a JSON file: `path`, `only` (ids of tests, or null for all), `limit` (how many of them to run), `options` of
pytest and `plugin` (a file with hooks of pytest, or null). A line of EVENTS is a JSON object with one of `tests` (all
ids of the file), `uncollected` (the reason), `started` (an id) or `test` (an id, with `outcome`, `reason`, `seconds`).
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import pytest

REASON_LENGTH = 300
# Of the reports of a test (set-up, call, tear-down, subtests) the first of these outcomes is that of the test.
WORST_FIRST = ("failed", "xpassed", "xfailed", "skipped", "passed")


class Recorder:
    """A pytest plugin that chooses the tests and writes the events."""

    def __init__(self, events, only, limit):
        self.events, self.only, self.limit = events, only, limit
        self.process = os.getpid()
        self.reports, self.clock = {}, 0.0

    def write(self, **event):
        if os.getpid() == self.process:  # a test may have forked
            print(json.dumps(event), file=self.events, flush=True)

    def pytest_collectreport(self, report):
        if not report.passed:
            self.write(uncollected=reason(report))

    def pytest_collection_modifyitems(self, items):
        self.write(tests=[item.nodeid for item in items])
        chosen = items if self.only is None else [item for item in items if item.nodeid in set(self.only)]
        items[:] = chosen[: self.limit]

    def pytest_runtest_logstart(self, nodeid):
        self.reports, self.clock = {}, time.monotonic()
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(42)
        self.write(started=nodeid)

    def pytest_runtest_logreport(self, report):
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "xpassed"
        self.reports.setdefault(outcome, "" if report.passed else reason(report))

    def pytest_runtest_logfinish(self, nodeid):
        outcome = next(name for name in WORST_FIRST if name in self.reports)
        seconds = round(time.monotonic() - self.clock, 1)
        self.write(test=nodeid, outcome=outcome, reason=self.reports[outcome], seconds=seconds)


def reason(report) -> str:
    """The last words of a report that is no pass: the exception, or why the test was skipped."""
    text = report.longrepr
    if isinstance(text, tuple):  # file, line, reason of a skip
        text = text[2]
    elif crash := getattr(text, "reprcrash", None):
        text = crash.message
    lines = [line for line in str(text).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E  ")]
    return " ".join(" ".join(errors or lines).split())[:REASON_LENGTH]


def plugin_of(path: str | None) -> list:
    """The module of a file with hooks."""
    if path is None:
        return []
    spec = importlib.util.spec_from_file_location("outside_plugin", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [module]


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    with Path(sys.argv[2]).open("a") as events:
        options = ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={Path.cwd()}", "-q", *job["options"]]
        sys.argv = [job["path"]]  # many of the tests read it
        plugins = [Recorder(events, job["only"], job["limit"]), *plugin_of(job["plugin"])]
        sys.exit(pytest.main([*options, job["path"]], plugins=plugins))


if __name__ == "__main__":
    main()
