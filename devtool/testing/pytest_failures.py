"""pytest plugin of `devtool test`: shows equal failures once, with a short traceback and the tests that they fail.

The failure that came first is the last on the screen. With `--tb` or `-v` pytest shows failures in its own way.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

import pytest

_ACTIVE = pytest.StashKey[bool]()
# The form of pyxla's errors. Such a message says what it is about, wherever it is raised.
_OWN_FORM = re.compile(r"[^:]+: (?:[^:]+: )+expected .*")
# What Python and XLA write before a message.
_KINDS = re.compile(r"^[\w.]*(Error|Exception): (Bad StatusOr access: )?([A-Z_]+: )?")
_NUMBER = re.compile(r"0x[0-9a-f]+|[-+]?\d+(\.\d*)?(e[-+]?\d+)?|\b(nan|inf)\b")
_SHAPE = re.compile(r"[(\[](N?(, ?N)*,?)[)\]]")
_PHASES = {"setup": "setup", "teardown": "teardown", "collect": "collection"}
_failures: list[pytest.CollectReport | pytest.TestReport] = []


@pytest.hookimpl(tryfirst=True)  # before the terminal reporter reads the options
def pytest_configure(config) -> None:
    option = config.option
    config.stash[_ACTIVE] = option.tbstyle in ("auto", "short") and option.verbose <= 0
    if config.stash[_ACTIVE]:
        option.tbstyle = "short"  # a worker of pytest-xdist also gets the option, and finds it here
        if option.reportchars == "a":
            option.reportchars = "sxX"  # all but the failures


def pytest_runtest_logreport(report) -> None:
    if report.failed:
        _failures.append(report)


def pytest_collectreport(report) -> None:
    if report.failed:
        _failures.append(report)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter, config):
    if not config.stash[_ACTIVE]:
        return (yield)
    config.option.tbstyle = "no"  # pytest's own lists of failures
    result = yield
    groups: dict[tuple, list] = {}
    for report in _failures:
        groups.setdefault(_cause(report), []).append(report)
    for reports in reversed(groups.values()):
        _show(terminalreporter, config.get_terminal_writer(), reports)
    return result


def _cause(report) -> tuple:
    """Equal for failures that differ in numbers, shapes and the case's name only."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext.strip()
    first = text.partition("\n")[0]
    for parameters in _parameters(report):
        for name in filter(None, (parameters, _split(parameters)[1])):
            first = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "CASE", first)
    masked = _SHAPE.sub("(N)", _NUMBER.sub("N", first))
    if own := _OWN_FORM.fullmatch(_KINDS.sub("", masked)):
        return (own[0],)
    return (masked, crash.path, crash.lineno) if crash else (masked, report.nodeid)


def _show(terminal, writer, reports: Sequence) -> None:
    first = reports[0]
    # pytest-xdist reports a test that ended its process without a phase.
    place = f"{_PHASES[first.when]} of " if first.when in _PHASES else ""
    terminal.write_sep("_", place + first.nodeid, red=True, bold=True)
    first.toterminal(writer)
    for name, content in first.sections:
        # torch.compile logs a line for each of its steps.
        own = [line for line in content.rstrip("\n").splitlines() if not line.startswith("DEBUG    torch.")]
        if own:
            terminal.write_sep("-", name)
            terminal.write_line("\n".join(own))
    if len(reports) > 1:
        terminal.write_line(f"\n{len(reports)} tests fail like this:")
        for line in _tests_of(reports):
            terminal.write_line(line)
    terminal.write_line("")


def _tests_of(reports: Sequence) -> list[str]:
    """The tests by function; those of an op's checks as the cases that fail the same checks."""
    lines = []
    functions: dict[str, list[str]] = {}
    for report in reports:
        functions.setdefault(report.nodeid.partition("[")[0], []).extend(_parameters(report))
    for function, all_parameters in functions.items():
        lines.append(f"  {function}")
        checks: dict[str, list[str]] = {}  # of each case
        for check, case in map(_split, all_parameters):
            checks.setdefault(case, []).append(check)
        cases: dict[str, list[str]] = {}  # of each set of checks
        for case, own in checks.items():
            cases.setdefault(", ".join(filter(None, dict.fromkeys(own))), []).append(case)
        for own, names in cases.items():
            text = f"{own}: {', '.join(names)}" if own else ", ".join(names)
            lines += textwrap.wrap(text, 116, initial_indent=" " * 4, subsequent_indent=" " * 6, break_on_hyphens=False)
    return lines


def _parameters(report) -> list[str]:
    """What pytest wrote in brackets behind the name of the test function."""
    _, bracket, rest = report.nodeid.partition("[")
    return [rest.removesuffix("]")] if bracket else []


def _split(parameters: str) -> tuple[str, str]:
    """The check of pyxla.testing among a test's parameters, if there is one, and the others: the case."""
    parts = parameters.split("-")
    check = next((part for part in parts if part.startswith("check_")), "")
    return check, "-".join(part for part in parts if part != check)
