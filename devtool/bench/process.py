"""The process that measures with pyxla.benchmark: what it says, how far it is, and how it ended."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import click

from devtool import project
from devtool.errors import DevtoolError, unknown
from devtool.processes import event_in, how_it_ended, run_lines


def run_measurement(where: str, command: Sequence[str], reader: Reader, environment: Mapping[str, str]) -> None:
    """Runs a measuring process to its end; shows on stderr how far it is.

    Args:
        where: the command of devtool, for errors.
        command: the process.
        reader: takes what it prints.
        environment: its environment.

    Raises:
        DevtoolError: it failed, or said why it did not measure.
    """
    with tempfile.TemporaryFile("w+", prefix=f"devtool-{where}-") as said, _progress(where) as bar:
        reader.bar = bar
        status = run_lines(command, reader.read, environment, project.root(), said)
        _require_end(where, status, reader, said)


def _require_end(where: str, status: int, reader: Reader, said: IO[str]) -> None:
    problem = reader.problem or {}
    if status == 0 and problem.get("problem") in (None, "none"):
        return
    if problem.get("problem") == "case":
        raise unknown(
            where, "--case", "a bench of these ops", problem["name"], problem["known"], "devtool bench --list"
        )
    if problem.get("problem") == "pyxla":
        raise DevtoolError(problem["message"], problem["hint"] or "devtool doctor")
    said.seek(0)
    click.echo(said.read(), err=True, nl=False)
    hint = "read the message above"
    if status < 0:
        hint = "devtool test --sanitize address finds reads and writes out of bounds"
    raise DevtoolError(f"{where}: {reader.doing}: the measuring process {how_it_ended(status)}", hint)


class Reader:
    """Reads what the measuring process prints, a line of JSON at a time.

    Attributes:
        bar: called with what is being done, or with the number of such calls.
        plan: the benches that are measured.
        problem: why nothing was measured, or None.
        document: the run, or None.
        doing: what was being done last.
    """

    def __init__(self, on_device: Callable[[dict], None] = lambda about: None):
        self._on_device = on_device
        self.bar: Callable[[str, int | None], None] = lambda text, total: None
        self.plan: list[dict[str, Any]] = []
        self.problem: dict[str, Any] | None = None
        self.document: dict[str, Any] | None = None
        self.doing = "measurement"

    def read(self, line: str) -> None:
        """Takes a line."""
        event = event_in(line)
        if "plan" in event:
            self.plan = event["plan"]
            self.bar("", event.get("steps"))
        elif "device" in event:
            self._on_device(event["device"])
        elif "tell" in event:
            self.doing = event["tell"]
            self.bar(self.doing, None)
        elif "problem" in event:
            self.problem = event
        elif "run" in event:
            self.document = event["run"]


@contextlib.contextmanager
def _progress(where: str) -> Iterator[Callable[[str, int | None], None]]:
    """A progress bar if stderr is a terminal, else a line for each bench."""
    if not sys.stderr.isatty():
        yield _lines(where)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(20),
        TextColumn("{task.percentage:3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def show(text: str, total: int | None) -> None:
            if total is not None:
                progress.update(task, total=total)
            else:
                progress.update(task, description=text, advance=1)

        yield show


def _lines(where: str) -> Callable[[str, int | None], None]:
    said: set[str] = set()

    def show(text: str, total: int | None) -> None:
        what = text.partition(":")[0]
        if what and what not in said:
            said.add(what)
            click.echo(f"{where}: {what}", err=True)

    return show
