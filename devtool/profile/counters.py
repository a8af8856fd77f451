"""Reads the page "raw" of Nsight Compute: a row for each kernel that ran, a column for each counter."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Mapping
from typing import Any

from devtool.errors import DevtoolError
from devtool.profile.figures import FIGURES, LIMITS, STALLS, stall_name
from devtool.profile.sass import source_name

_STALLED, _PER_ISSUE = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"


def read_raw(text: str) -> list[dict[str, str]]:
    """The kernels of a page in CSV, in the order in which they ran: the name of a column -> the text in it.

    Raises:
        DevtoolError: it is no such page, or no kernel ran.
    """
    rows = list(csv.reader(text.splitlines()))
    start = next((at for at, row in enumerate(rows) if "Kernel Name" in row), len(rows))
    # The row below the names of the columns has their units.
    names, found = (rows[start], rows[start + 2 :]) if start < len(rows) else ([], [])
    kernels = [dict(zip(names, row, strict=True)) for row in found if len(row) == len(names)]
    if not kernels:
        message = "profile: ncu: expected a kernel between the marks of the profiler, got none"
        raise DevtoolError(message, "name a case with elements: devtool profile OP --list")
    return kernels


def number_of(text: str) -> float | None:
    """The number in a cell, which may have commas between thousands; None if it is no number."""
    with contextlib.suppress(ValueError):
        return float(text.replace(",", ""))
    return None


def kernel_of(row: Mapping[str, str]) -> dict[str, Any]:
    """A kernel as in the file of a profile: `name`, `figures`, `limited_by` and `stalls`."""
    figures = {}
    for figure in FIGURES:
        value = number_of(row.get(figure.metric, ""))
        if value is not None:
            figures[figure.key] = value * figure.factor
    return {
        "name": source_name(row["Kernel Name"]),
        "figures": figures,
        "limited_by": _limited_by(row),
        "stalls": _stalls(row),
    }


def _limited_by(row: Mapping[str, str]) -> list[str]:
    """The resources that allow the fewest CTAs of an SM."""
    ctas = {name: value for metric, name in LIMITS.items() if (value := number_of(row.get(metric, ""))) is not None}
    full = number_of(row.get("sm__maximum_warps_per_active_cycle_pct", "")) == 100
    return [] if full else [name for name in ctas if ctas[name] == min(ctas.values())]


def _stalls(row: Mapping[str, str]) -> dict[str, float]:
    """Reason -> its share of the cycles in which warps did not issue, the largest first."""
    cycles: dict[str, float] = {}
    for metric, text in row.items():
        reason = stall_name(metric.removeprefix(_STALLED).removesuffix(_PER_ISSUE))
        if metric.startswith(_STALLED) and metric.endswith(_PER_ISSUE) and reason != "selected":
            cycles[reason if reason in STALLS else "misc"] = number_of(text) or 0.0
    total = sum(cycles.values()) or 1.0
    return dict(sorted(((name, value / total) for name, value in cycles.items() if value), key=lambda item: -item[1]))
