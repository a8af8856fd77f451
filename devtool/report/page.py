"""Makes the page of `devtool report`: the records, schema, HLO and machine code of each op."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from devtool import project
from devtool.errors import FAILED, DevtoolError, error_from
from devtool.files import require_writable, write_atomic
from devtool.hlo.svg import STYLE
from devtool.profile.profile_file import Profile, read_kept
from devtool.profile.sass import kernels_of
from devtool.records.run_file import Run
from devtool.records.store import fingerprint, read_benches, read_tests
from devtool.report.live import probe
from devtool.report.profile_view import profile_views
from devtool.report.view import MIX, has_tests, history_view, sass_view, speed_views, tests_view

_TEMPLATES = Path(__file__).parent / "template"


def write_report(names: Sequence[str], output: Path) -> None:
    """Writes the page; reports on stderr what it does, and which records the page lacks.

    Args:
        names: ops; none means all of them.
        output: the page, an HTML file.

    Raises:
        DevtoolError: there is no such op, or the page cannot be written. The page itself says what is wrong with an op.
    """
    ops = project.select_ops("report", names)
    require_writable("report: --output", output, FAILED)
    click.echo(f"report: inspecting {', '.join(ops)}", err=True)
    live, machine_code = _probe(ops)
    runs, foreign = read_benches()
    profiles, others = read_kept()
    entries = [_entry(op, live[op], machine_code[op], runs, profiles) for op in ops]
    # The page is also for readers who have other folders.
    text = _render(entries, [*foreign, *others]).replace(f"{project.root()}/", "")
    try:
        write_atomic(output, text)
    except OSError as error:
        raise error_from("report", error) from error
    count = f"{len(ops)} op{'s' * (len(ops) != 1)}"
    click.echo(f"report: wrote {output}: {count}, {len(text.encode()) / 1e3:.0f} kB", err=True)
    commands = dict.fromkeys(line["command"] for entry in entries for line in entry["missing"])
    if commands:
        click.echo("report: the page says what these commands would add or update:", err=True)
        for command in commands:
            click.echo(f"  {command}", err=True)


def _probe(ops: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Runs the ops and, at the same time, disassembles their libraries, two at a time."""
    stop = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        sass = pool.map(lambda op: _sass(op, stop), ops)
        try:
            return probe(ops), dict(zip(ops, sass, strict=True))
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _sass(op: str, stop: threading.Event) -> dict[str, Any]:
    """`kernels`, or a `problem` and its `hint`."""
    try:
        return {"kernels": kernels_of("report", op, stop)}
    except DevtoolError as error:
        message, _, hint = error.message.partition("\n\nhint: ")
        return {"problem": message, "hint": hint}


def _entry(
    op: str, live: dict[str, Any], sass: dict[str, Any], runs: Sequence[Run], profiles: Sequence[Profile]
) -> dict[str, Any]:
    sources = fingerprint(op)
    tests, problems = read_tests(op)
    absent = {"problem": live["problem"], "hint": f"devtool test {op}"} if "problem" in live else {}
    entry = {
        "name": op,
        "library": live.get("library", absent),
        "ops": live.get("ops", absent),
        "hlo": live.get("hlo", absent),
        "tests": [tests_view(op, each, sources) for each in tests],
        "test_problems": problems,
        "has_tests": has_tests(op),
        "speed": speed_views(op, runs, sources),
        "history": history_view(op, runs, sources),
        "profiles": profile_views(op, profiles, sources),
        "sass": sass if "problem" in sass else {"architectures": sass_view(sass["kernels"])},
    }
    entry["missing"] = _missing(entry)
    return entry


def _missing(entry: dict[str, Any]) -> list[dict[str, str]]:
    """What the page lacks about an op, or shows from before its sources changed, and the command that makes it."""
    op, library = entry["name"], entry["library"]
    found = []

    def add(what: str, command: str) -> None:
        found.append({"what": what, "command": command})

    if library.get("state") in ("not built", "stale", "corrupt", "unsupported"):
        add(f"Its library is {library['state']}.", f"devtool build {op}")
    if not entry["tests"] and entry["has_tests"]:
        add("No complete run of its tests is on record.", f"devtool test {op}")
    for what, views in (("test", entry["tests"]), ("bench", entry["speed"])):
        for view in views:
            kind = view["device"].partition(",")[0] if what == "test" else view["kind"]
            if not view["fresh"]:
                add(
                    f"Its sources changed since the {what} run on {kind} shown here.",
                    f"devtool {what} {op} --device {kind}",
                )
    for view in entry["profiles"]:
        if not view["fresh"]:
            add(f"Its sources changed since the profile of {view['title']} shown here.", view["command"])
    if not entry["speed"]:
        add("No run of its benches is on record.", f"devtool bench {op}")
    return found


def _render(entries: Sequence[dict[str, Any]], foreign: Sequence[str]) -> str:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Removes the style from a picture of devtool hlo: the page contains it once, for all pictures.
    environment.filters["without_style"] = lambda svg: re.sub(r"<style>.*?</style>\n?", "", svg, flags=re.DOTALL)
    versions = {}
    for name in ("pyxla", "torch", "torch_xla", "jaxlib"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return environment.get_template("page.html.jinja").render(
        entries=entries,
        foreign=foreign,
        classes=MIX,
        hlo_style=STYLE,
        versions=versions,
        date=datetime.now(UTC).isoformat(timespec="minutes").replace("T", " ").removesuffix("+00:00"),
    )
