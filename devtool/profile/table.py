"""Prints a profile on stdout: the call, a table of its kernels' figures, stalls, the hottest lines, advice."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from devtool.bench.table import duration, rate
from devtool.profile.figures import BY_KEY, FIGURES, STALLS, share
from devtool.profile.profile_file import Profile

_HOTTEST = 10
# The share from which a reason of stalls is shown.
LEAST_STALL = 0.01
# Of a column that gets the width that is left.
_LEAST = 20
# Between two columns.
_BETWEEN = 2
# Without a terminal.
_WIDTH = 140


def print_profile(profile: Profile) -> None:
    """Prints all that a profile says."""
    for line in heading(profile):
        click.echo(line)
    if profile.case is None:
        _print_machine_code(profile.kernels)
    else:
        _print_figures(profile.kernels)
    for kernel in profile.kernels:
        _print_kernel(kernel)
    for line in profile.document["missing"]:
        click.echo(f"missing: {line}")


def heading(profile: Profile) -> Iterable[str]:
    """What was called where, how long it took, and how that compares with the device's own rates."""
    document = profile.document
    if profile.case is None:
        yield f"{profile.op}: machine code for {document['architecture']}"
        return
    yield f"{profile.op} {profile.case} on {profile.device}"
    yield f"a call takes {duration(profile.seconds)}, caches cold, without the profiler"
    for name, part in profile.shares().items():
        amount, own = document["bytes" if name == "copy" else "operations"], document["rates"][name]
        reached, most = (rate(value, name) for value in (amount / profile.seconds, own["per_second"]))
        yield f"{reached}, {part:.0%} of the {name} rate, {most}: {own['what']}"


def cells(kernel: dict[str, Any]) -> dict[str, str]:
    """Label -> text of each figure of a kernel."""
    found = {f.label: f.text(kernel["figures"][f.key]) for f in FIGURES if f.key in kernel["figures"]}
    if kernel["limited_by"]:
        found["occupancy is limited by"] = " and ".join(kernel["limited_by"])
    return found


def stall_text(reason: str) -> str:
    """A reason in words, for a table: "long_sb (global or local memory)"."""
    return f"{reason} ({STALLS[reason]})" if reason in STALLS else reason


def hottest(kernel: dict[str, Any], most: int = _HOTTEST) -> list[dict[str, Any]]:
    """The lines of the source with the most samples, the hottest first."""
    sampled = [line for line in kernel["lines"] if line["share"] > 0]
    return sorted(sampled, key=lambda line: -line["share"])[:most]


def print_table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table on stdout.

    Args:
        columns: title and kind: "left" or "right" aligned; "fold" may take several lines; "cut" gets the width that the
            others leave.
        rows: the cells.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, rows = Console(width=None if sys.stdout.isatty() else _WIDTH), list(rows)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    widths = [max(map(len, cells)) + _BETWEEN for cells in zip([title for title, _ in columns], *rows, strict=True)]
    for (title, kind), own in zip(columns, widths, strict=True):
        room = max(_LEAST, console.width - sum(widths) + own - _BETWEEN) if kind == "cut" else None
        table.add_column(
            title,
            justify="right" if kind == "right" else "left",
            no_wrap=kind != "fold",
            overflow="fold" if kind == "fold" else "ellipsis",
            max_width=room,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_machine_code(kernels: Sequence[dict[str, Any]]) -> None:
    keys = ("registers", "shared_static", "stack", "local_code", "threads", "theoretical", "instructions")
    titles = ("registers", "shared", "stack", "local", "threads", "occupancy", "instructions")

    def row(kernel: dict[str, Any]) -> list[str]:
        figures, mix = kernel["figures"], kernel["mix"]
        total = sum(mix.values()) or 1
        most = sorted(mix, key=lambda name: -mix[name])[:2]
        texts = [BY_KEY[key].text(figures[key]) if key in figures else "?" for key in keys]
        limits, classes = " and ".join(kernel["limited_by"]), ", ".join(f"{c} {mix[c] / total:.0%}" for c in most)
        return [kernel["name"], *texts, limits, classes]

    columns = [("kernel", "fold"), *((title, "right") for title in titles), ("limited by", "left"), ("most", "left")]
    print_table(columns, map(row, kernels))
    click.echo("local: loads and stores of local memory in the code, by spilled registers or by arrays")
    click.echo("threads: the most of a CTA that the kernel declares; occupancy: the most that these figures allow")


def _print_figures(kernels: Sequence[dict[str, Any]]) -> None:
    columns = [cells(kernel) for kernel in kernels]
    labels = dict.fromkeys(label for column in columns for label in column)
    rows = [(label, *(column.get(label, "") for column in columns)) for label in labels]
    print_table([("", "left"), *((kernel["name"], "fold") for kernel in kernels)], rows)


def _print_kernel(kernel: dict[str, Any]) -> None:
    """The stalls, the hottest lines and the advice of a kernel."""
    stalls = [(name, part) for name, part in kernel["stalls"].items() if part >= LEAST_STALL]
    if stalls:
        click.echo(f"{kernel['name']}: stalls")
        rows = [(share(part), stall_text(name)) for name, part in stalls]
        print_table([("share", "right"), ("a warp waits for", "left")], rows)
    if lines := hottest(kernel):
        click.echo(f"{kernel['name']}: hottest lines, by samples of stalled and issuing warps")
        columns = [("share", "right"), ("line", "left"), ("source", "cut"), ("stall", "left"), ("instructions", "left")]
        print_table(columns, map(_hot_line, lines))
    for text in kernel["advice"]:
        click.echo(f"{kernel['name']}: {text}")


def _hot_line(line: dict[str, Any]) -> tuple[str, ...]:
    # Without what follows the name: LDGSTS of LDGSTS.E.BYPASS.LTC128B.128. The report shows all.
    code = dict.fromkeys(name.partition(".")[0] for name in line["code"])
    place = f"{line['file'] or 'instruction'}:{line['line']}"
    return share(line["share"]), place, line["text"].strip(), line["stall"], ", ".join(code)
