"""pytest plugin of `devtool test`: writes down each test's outcome, which pytest itself only prints."""

from __future__ import annotations

import json
from pathlib import Path

_outcomes: dict[str, str] = {}


def pytest_addoption(parser) -> None:
    parser.getgroup("devtool").addoption(
        "--devtool-outcomes", metavar="FILE", help="write the outcomes to FILE as JSON"
    )


def pytest_runtest_logreport(report) -> None:
    # A test that fails while it is set up or torn down has failed, whatever its call did.
    if (report.outcome != "passed" or report.when == "call") and _outcomes.get(report.nodeid) != "failed":
        _outcomes[report.nodeid] = report.outcome


def pytest_collectreport(report) -> None:
    if report.failed:
        _outcomes[report.nodeid] = "failed"


def pytest_sessionfinish(session) -> None:
    path = session.config.getoption("--devtool-outcomes")
    if path:
        Path(path).write_text(json.dumps(_outcomes))
