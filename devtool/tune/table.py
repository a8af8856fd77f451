"""What `devtool tune` prints of its choices."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from devtool.bench.table import duration
from devtool.tune.choose import Choice
from devtool.tune.space import Space, Table


def print_choices(space: Space, table: Table, choices: Sequence[Choice], document: Mapping[str, Any]) -> None:
    """Prints the table and the classes without a bench on stdout.

    Args:
        space: what the op's tuning.py declares.
        table: today's.
        choices: those of the classes that have a bench.
        document: the measured run.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable

    click.echo(f"{space.op} on {device_text(document['device'])}, {document['rounds']} rounds")
    shown = RichTable(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for title in ("class", "benches", "values"):
        shown.add_column(title, overflow="fold")
    for title in ("time", "against\ntable", "99 % interval", "runner-up", "against\nvalues"):
        shown.add_column(title, justify="right", no_wrap=True)
    for choice in choices:
        chosen = next((c for c in choice.candidates if c.values == choice.values), None)
        other = choice.runner_up
        shown.add_row(
            space.class_text(choice.shape),
            ", ".join(choice.benches),
            f"{space.text(choice.values)}{' (new)' if choice.is_changed else ''}",
            duration(choice.seconds),
            *((f"{chosen.ratio:.3f}", f"{chosen.low:.3f} to {chosen.high:.3f}") if chosen else ("", "")),
            *((space.text(other.values), f"{other.ratio:.3f}") if other else ("", "")),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(shown)
    measured = {choice.shape for choice in choices}
    for shape, values in table.items():
        if shape not in measured:
            click.echo(f"no bench, so not changed: {space.class_text(shape)}: {space.text(values)}")


def device_text(about: Mapping[str, Any]) -> str:
    """The device for people: "NVIDIA H200"."""
    return str(about.get("name", "an unknown device"))


def remarks(space: Space, choices: Sequence[Choice], cases: Sequence[Mapping[str, Any]], noise: float) -> list[str]:
    """Lines for stderr: variants that were not timed, and classes where the kernel seems to ask for another key."""
    lines = []
    for case in cases:
        lines += [f"tune: {case['case']}: {name} is not timed: {why}" for name, why in case["refused"].items()]
    for choice in choices:
        if choice.table_ratio and not 1 / (1 + 5 * noise) <= choice.table_ratio[0] <= 1 + 5 * noise:
            value, low, high = choice.table_ratio
            lines.append(
                f"tune: {space.class_text(choice.shape)}: the table takes {value:.2f} ({low:.2f} to {high:.2f}) times "
                "as long as a build with its values alone: does the kernel pass to Choose what key() returns?"
            )
    return lines
