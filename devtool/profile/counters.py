"""Reads the page "raw" of Nsight Compute: a row for each kernel that ran, a column for each counter."""

from __future__ import annotations

import contextlib
import csv
import math
from dataclasses import dataclass
from typing import Any

from devtool.errors import DevtoolError
from devtool.profile.figures import FIGURES, LIMITS, stall_name
from devtool.profile.sass import source_name

_PREFIXES = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_STALLED, _PER_ISSUE = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"


@dataclass(frozen=True)
class Row:
    """A kernel that ran.

    Attributes:
        texts: column -> the text in it.
        units: column -> its unit: "Gbyte".
    """

    texts: dict[str, str]
    units: dict[str, str]

    def value(self, metric: str) -> float | None:
        """A counter in s, bytes, bytes/s, a share of 1 or as a count; None if it was not taken."""
        value = number_of(self.texts.get(metric, ""))
        return None if value is None else value * _factor(self.units[metric])


def read_raw(text: str) -> list[Row]:
    """The kernels of a page in CSV, in the order in which they ran.

    Raises:
        DevtoolError: it is no such page, or no kernel ran.
    """
    rows = list(csv.reader(text.splitlines()))
    start = next((at for at, row in enumerate(rows) if "Kernel Name" in row), len(rows))
    # The row below the names of the columns has their units.
    names, units, *found = rows[start:] if start < len(rows) else ([], [])
    kernels = [Row(dict(zip(names, row, strict=True)), dict(zip(names, units, strict=True))) for row in found]
    if not kernels:
        message = "profile: ncu: expected a kernel between the marks of the profiler, got none"
        raise DevtoolError(message, "name a case with elements: devtool profile OP --list")
    return kernels


def number_of(text: str) -> float | None:
    """The number in a cell, which may have commas between thousands; None if it is none: "no data", "nan"."""
    with contextlib.suppress(ValueError):
        value = float(text.replace(",", ""))
        return value if math.isfinite(value) else None
    return None


def kernel_of(row: Row) -> dict[str, Any]:
    """A kernel as in the file of a profile: `name`, `figures`, `limited_by` and `stalls`."""
    figures = {}
    for figure in FIGURES:
        value, whole = row.value(figure.metric), row.value(figure.of)
        if value is not None and (not figure.of or whole):
            figures[figure.key] = value / whole if figure.of else value
    name = source_name(row.texts["Kernel Name"])
    return {"name": name, "figures": figures, "limited_by": _limited_by(row), "stalls": _stalls(row)}


def _factor(unit: str) -> float:
    """From a unit to the base unit: 1e9 for Gbyte/s, 1e-6 for us; the prefixes are decimal."""
    unit = unit.partition("/")[0]
    if unit == "%":
        return 0.01
    return _PREFIXES.get(unit.removesuffix("byte" if unit.endswith("byte") else "s"), 1.0)


def _limited_by(row: Row) -> list[str]:
    """The resources that allow the fewest CTAs of an SM."""
    ctas = {name: value for metric, name in LIMITS.items() if (value := row.value(metric)) is not None}
    full = row.value("sm__maximum_warps_per_active_cycle_pct") == 1
    return [] if full else [name for name in ctas if ctas[name] == min(ctas.values())]


def _stalls(row: Row) -> dict[str, float]:
    """Reason -> its share of the cycles in which warps did not issue, the largest first."""
    cycles: dict[str, float] = {}
    for metric in row.texts:
        reason = stall_name(metric.removeprefix(_STALLED).removesuffix(_PER_ISSUE))
        if metric.startswith(_STALLED) and metric.endswith(_PER_ISSUE) and reason != "selected":
            cycles[reason] = row.value(metric) or 0.0
    total = sum(cycles.values()) or 1.0
    return dict(sorted(((name, value / total) for name, value in cycles.items() if value), key=lambda item: -item[1]))
