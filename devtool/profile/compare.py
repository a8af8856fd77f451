"""Compares two profiles: each figure of the kernels that both have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from devtool.bench.table import duration
from devtool.errors import DevtoolError
from devtool.profile.figures import FIGURES, share
from devtool.profile.profile_file import Profile
from devtool.profile.table import LEAST_STALL, print_table


@dataclass(frozen=True)
class Change:
    """A figure before and now: its row of the table."""

    kernel: str
    label: str
    before: str
    now: str
    change: str


def compare_profiles(before: Profile, now: Profile) -> list[Change]:
    """The changes of the call and of each kernel with the same name and turn in both profiles.

    Raises:
        DevtoolError: the earlier profile is of another device, op or case, or has none of these kernels.
    """
    for what in ("op", "case", "device"):
        if (got := getattr(before, what)) != (expected := getattr(now, what)):
            message = f"profile: --compare: expected a profile of {what} {expected}, got {what} {got}"
            raise DevtoolError(message, "compare profiles of one op and case on one device")
    old = dict(_named(before))
    pairs = [(name, old[name], kernel) for name, kernel in _named(now) if name in old]
    if not pairs:
        message = (
            f"profile: --compare: expected the kernels {', '.join(dict(_named(now)))}, got {', '.join(old) or 'none'}"
        )
        raise DevtoolError(message, "the op launches other kernels now: save a new profile with --json")
    changes = []
    if before.seconds and now.seconds:
        change = _ratio(before.seconds, now.seconds)
        changes.append(Change("the call", "duration", duration(before.seconds), duration(now.seconds), change))
    for name, was, kernel in pairs:
        for figure in FIGURES:
            if figure.key in was["figures"] and figure.key in kernel["figures"]:
                values = was["figures"][figure.key], kernel["figures"][figure.key]
                change = _points(*values) if figure.text is share else _ratio(*values)
                changes.append(Change(name, figure.label, *map(figure.text, values), change))
        for reason in dict.fromkeys([*kernel["stalls"], *was["stalls"]]):
            values = was["stalls"].get(reason, 0.0), kernel["stalls"].get(reason, 0.0)
            if max(values) >= LEAST_STALL:
                changes.append(Change(name, f"stalls: {reason}", *map(share, values), _points(*values)))
    return changes


def print_changes(changes: Sequence[Change], before: Profile) -> None:
    """Prints the table on stdout."""
    click.echo(f"against the profile of {before.document['date']}")
    names = [""] + [change.kernel for change in changes]
    rows = [
        ("" if change.kernel == last else change.kernel, change.label, change.before, change.now, change.change)
        for last, change in zip(names, changes, strict=False)
    ]
    columns = [("kernel", "fold"), ("figure", "left"), ("before", "right"), ("now", "right"), ("change", "right")]
    print_table(columns, rows)


def _named(profile: Profile) -> Iterator[tuple[str, dict]]:
    """The kernels by name; a second launch of one is `Kernel, launch 2`."""
    launches: dict[str, int] = {}
    for kernel in profile.kernels:
        name = kernel["name"]
        launches[name] = launches.get(name, 0) + 1
        yield name if launches[name] == 1 else f"{name}, launch {launches[name]}", kernel


def _ratio(before: float, now: float) -> str:
    """The change in percent; nothing where there is none."""
    if before == now:
        return ""
    return f"{100 * (now / before - 1):+.1f} %" if before else "new"


def _points(before: float, now: float) -> str:
    return f"{100 * (now - before):+.1f} points" if abs(now - before) >= 0.0005 else ""
