"""The table of `devtool bench`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from devtool.records.run_file import Case, Layer, Run

# The load per core above which a machine is called busy.
_BUSY = 0.5
# The ratio of the rates before and after the run from which their change is reported.
_DRIFT = 1.2


def print_run(run: Run) -> None:
    """Prints the table and the remarks on stdout."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    for line in _heading(run):
        click.echo(line)
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for title in ("case", "layer"):
        table.add_column(title, no_wrap=True)
    for title in ("time", "spread", "rate", "of the\nrate", "against\nraw"):
        table.add_column(title, justify="right", no_wrap=True)
    several = len({case.op for case in run.cases}) > 1
    for case in run.cases:
        label = f"{case.op} {case.name}" if several else case.name
        for number, cells in enumerate(rows(case)):
            wrong = cells[1] == "WRONG"
            table.add_row(
                *(Text(cell, style="bold red" if wrong else "") for cell in ("" if number else label, *cells))
            )
        table.add_section()
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for line in remarks(run):
        click.echo(line)


def remarks(run: Run) -> Iterable[str]:
    """The lines below the table: what the columns mean, what was left out, and why."""
    yield "spread: half the interquartile range. raw: one call, cold caches. step: that many calls in a row."
    sampled = [case for case in run.cases if case.checked not in ("all", "nothing")]
    if sampled:
        cases = f"{len(sampled)} of {len(run.cases)} cases"
        yield f"only a sample of rows was compared with the reference, the others were searched for NaN: {cases}"
    skipped: dict[tuple[str, str], list[str]] = {}
    for case in run.cases:
        for layer in case.layers:
            if layer.skipped:
                skipped.setdefault((layer.name, layer.skipped), []).append(case.name)
    for (name, reason), cases in skipped.items():
        yield f"not timed: {name} ({len(cases)} of {len(run.cases)} cases): {reason}"
    for name in ("copy", "matrix"):
        measured = run.document["rates"][name].get("measured") or [1]
        if max(measured) > _DRIFT * min(measured):
            values = " and ".join(rate(value, name) for value in measured)
            yield f"the machine's speed changed: {name} rate {values} before and after; shares are of the better one"
    if run.document.get("load", 0) > _BUSY:
        yield f"the machine was busy: {run.document['load']:.1f} running processes per core when it began"


def number(value: float) -> str:
    """Three digits: 0.123, 1.23, 12.3, 123."""
    rounded = float(f"{value:.3g}")
    digits = len(str(int(rounded))) if rounded >= 1 else 0
    return f"{rounded:.{max(0, 3 - digits)}f}"


def duration(seconds: float) -> str:
    """A time with the unit that fits: 12.3 us."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{number(seconds * factor)} {unit}"
    return f"{number(seconds * 1e6)} us"


def rate(per_second: float, bound: str) -> str:
    """A rate with the unit that fits: 4.24 TB/s, 770 TFLOP/s."""
    unit = "B/s" if bound == "copy" else "FLOP/s"
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if per_second >= factor:
            return f"{number(per_second / factor)} {prefix}{unit}"
    return f"{number(per_second)} {unit}"


def _heading(run: Run) -> Iterable[str]:
    ops = ", ".join(dict.fromkeys(case.op for case in run.cases))
    yield f"{ops} on {run.device}"
    for name, verb in (("copy", "copies"), ("matrix", "multiplies")):
        measured = run.document["rates"][name]
        yield f"{verb} {rate(measured['per_second'], name)}: {measured['what']}"


def rows(case: Case) -> Iterable[tuple[str, ...]]:
    """For each layer: name, time, spread, rate, share of the rate, time as a multiple of the raw layer's."""
    if case.refused:
        yield "raw", "WRONG", "", "", "", ""
    for layer in case.layers:
        if layer.refused:
            yield layer.name, "WRONG", "", "", "", ""
        elif layer.seconds:
            yield _row(case, layer)


def _row(case: Case, layer: Layer) -> tuple[str, ...]:
    name = f"{layer.name} of {layer.calls}" if layer.calls > 1 else layer.name
    base = case.layer("raw step" if layer.name.endswith(" step") else "raw")
    return (
        name,
        duration(layer.median),
        f"{layer.spread:.0%}",
        rate(case.rate(layer.median), case.bound),
        f"{case.floor / layer.median:.0%}",
        f"{layer.median / base.median:.2f}" if base else "",
    )
