"""pytest plugin of `devtool test`: leaves out slow tests and needless work, and records each test's outcome and time.

Under pytest-xdist the workers select the tests and send reports; only the main process writes the file.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

_outcomes: dict[str, str] = {}
_seconds: Counter[str] = Counter()
_LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser) -> None:
    group = parser.getgroup("devtool")
    group.addoption("--devtool-outcomes", metavar="FILE", help="write outcomes, seconds and what was left out to FILE")
    group.addoption("--without-slow", action="store_true", help="leave out the tests that are marked as slow")


@pytest.hookimpl(tryfirst=True)  # before hypothesis looks for the profile, and pytest adds its clean-ups
def pytest_configure(config) -> None:
    # Python's end would look through all objects of torch for garbage: 0.7 s. The first clean-up added is the last to
    # run, after those in which pytest looks for exceptions in finalizers.
    config.add_cleanup(gc.freeze)
    if config.getoption("--hypothesis-profile", None) != "thorough":
        return
    # Not at the top: it takes 0.8 s, and most ops' tests do without it.
    from hypothesis import settings

    # For `devtool test --all`. A test that sets its own number of examples keeps it: each example costs a call of XLA.
    settings.register_profile("thorough", settings.get_profile("ci"), max_examples=1000)


# After the selection by -k and -m, and after other plugins have marked tests.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items) -> None:
    slow = [item for item in items if item.get_closest_marker("slow")] if config.getoption("--without-slow") else []
    config.stash[_LEFT_OUT] = len(slow)
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_runtest_logreport(report) -> None:
    _seconds[report.nodeid] += report.duration  # includes the set-up, where a fixture takes its time
    # A test that fails while it is set up or torn down has failed, whatever its call did.
    if (report.outcome != "passed" or report.when == "call") and _outcomes.get(report.nodeid) != "failed":
        _outcomes[report.nodeid] = report.outcome


def pytest_collectreport(report) -> None:
    if report.failed:
        _outcomes[report.nodeid] = "failed"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    # Each worker of pytest-xdist selects from all tests, so each has the same number.
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist's hook, which sends the worker's output
def pytest_sessionfinish(session) -> None:
    config, path = session.config, session.config.getoption("--devtool-outcomes")
    left_out = config.stash.get(_LEFT_OUT, 0)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = left_out
    elif path:
        Path(path).write_text(json.dumps({"outcomes": _outcomes, "seconds": _seconds, "left_out": left_out}))
    _leave_hypothesis_out(config.pluginmanager)


def _leave_hypothesis_out(plugins: pytest.PytestPluginManager) -> None:
    """Keeps hypothesis' plugin from importing it for the summary of a run in which nothing took it.

    Where pytest-xdist distributes, other processes took it and their reports are for the summary here.
    """
    if "hypothesis" not in sys.modules and not plugins.has_plugin("dsession"):
        plugins.unregister(name="hypothesispytest")
