"""Turns the records of an op into the words and numbers that the template of `devtool report` prints."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from devtool import project
from devtool.bench.roofline import layer_names
from devtool.bench.table import duration, rate, remarks, rows
from devtool.profile.sass import CLASSES, REST, Kernel, spilled
from devtool.records.run_file import Case, Run
from devtool.records.store import Tests
from devtool.report import plots
from devtool.testing.table import COLUMNS

# The classes of instructions in the order of the legend and of a kernel's bar.
MIX = (*CLASSES, REST)


def tests_view(op: str, tests: Tests, sources: str) -> dict[str, Any]:
    """A complete run of the op's tests: counts, a row per case, the other tests that failed, the plot."""
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for check in tests.checks:
        cases.setdefault((check["op"], check["case"]), []).append(check)
    table = [_case_row(case if name == op else f"{name} {case}", checks) for (name, case), checks in cases.items()]
    counts = Counter(tests.outcomes.values())
    errors = [row["error"] for row in table]
    worst = max((error for error in errors if error.share is not None), key=lambda error: error.share, default=None)
    label = f"Worst error of {len(errors)} cases as a share of what is allowed"
    checked = {check["test"] for check in tests.checks}
    others = {test: outcome for test, outcome in tests.outcomes.items() if test not in checked}
    return {
        "device": tests.device,
        "date": _date(tests.date),
        "ended": tests.ended,
        "fresh": tests.sources == sources,
        "counts": {outcome: counts[outcome] for outcome in ("passed", "failed", "skipped")},
        "columns": list(COLUMNS),
        "rows": table,
        "worst": worst,
        "others": {outcome: sum(o == outcome for o in others.values()) for outcome in ("passed", "failed", "skipped")},
        "failed": [test for test, outcome in others.items() if outcome == "failed"],
        "problems": [(row["case"], title, text) for row in table for title, text in row["problems"].items()],
        "plot": plots.accuracy(errors, f"{label}; the table below has the numbers") if errors else None,
    }


def _case_row(case: str, checks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    by_name = {check["check"]: check for check in checks}
    cells = {title: None if name not in by_name else by_name[name]["ok"] for title, name in COLUMNS.items()}
    measured = [check for check in checks if "share" in check]
    worst = max(measured, key=lambda check: check["share"], default=None)
    ok = all(check["ok"] for check in checks)
    share, error, allowed = (worst["share"], worst["error"], worst["allowed"]) if worst else (None, 0.0, 0.0)
    return {
        "case": case,
        "why": checks[0].get("why", ""),
        "cells": cells,
        "error": plots.Error(case, share, error, allowed, ok),
        "problems": {
            title: by_name[name].get("problem", "failed")
            for title, name in COLUMNS.items()
            if name in by_name and not by_name[name]["ok"]
        },
    }


def speed_views(op: str, runs: Sequence[Run], sources: str) -> list[dict[str, Any]]:
    """The newest run on each device: roofline and table."""
    newest = {run.device: run for run in _of(op, runs)}
    return [_speed(op, run, sources) for run in newest.values()]


def _speed(op: str, run: Run, sources: str) -> dict[str, Any]:
    shares = [(share, case.name) for case in run.cases if (share := _share(case, op)) is not None]
    names = layer_names(run.cases)
    label = f"Roofline of {len(run.cases)} cases on {run.device}; the table below has the numbers"
    return {
        "device": run.device,
        "kind": run.document["device"]["kind"],
        "date": _date(run.document["date"]),
        "rounds": run.document["rounds"],
        "fresh": _sources(run, op) == sources,
        "rates": [
            f"{verb} {rate(run.rate(name), name)}" for name, verb in (("copy", "copies"), ("matrix", "multiplies"))
        ],
        "best": max(shares, default=None),
        "plot": plots.roofline(run, label),
        "legend": [(plots.swatch(number), name) for number, name in enumerate(names)],
        "cases": [(case.name, list(rows(case))) for case in run.cases],
        "refused": [(case.name, case.refused) for case in run.cases if case.refused]
        + [(case.name, f"{la.name}: {la.refused}") for case in run.cases for la in case.layers if la.refused],
        "remarks": list(remarks(run)),
    }


def history_view(op: str, runs: Sequence[Run], sources: str) -> list[dict[str, Any]]:
    """For each case on each device: the time of its raw call from run to run."""
    series: dict[tuple[str, str], list[tuple[Run, Case]]] = {}
    for run in _of(op, runs):
        for case in run.cases:
            if case.layer(_raw(op)):
                series.setdefault((run.device, case.name), []).append((run, case))
    return [_series(op, *key, found, sources) for key, found in series.items()]


def _series(op: str, device: str, case: str, found: Sequence[tuple[Run, Case]], sources: str) -> dict[str, Any]:
    shares = [_share(each, op) for _, each in found]
    percent = ", ".join(f"{share:.0%}" for share in shares)
    return {
        "case": case,
        "device": device,
        "plot": plots.history(shares, f"Share of the rate, oldest run first: {percent}"),
        "newest": shares[-1],
        "best": max(shares),
        "runs": [
            {
                "date": _date(run.document["date"]),
                "time": duration(each.layer(_raw(op)).median),
                "spread": f"{each.layer(_raw(op)).spread:.0%}",
                "share": f"{share:.0%}",
                "sources": "as now" if _sources(run, op) == sources else (_sources(run, op) or "unknown")[:8],
            }
            for (run, each), share in reversed(list(zip(found, shares, strict=True)))
        ],
    }


def sass_view(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """A table of kernels for each architecture."""
    found = []
    for architecture in dict.fromkeys(kernel.architecture for kernel in kernels):
        own = [kernel for kernel in kernels if kernel.architecture == architecture]
        found.append(
            {
                "name": architecture,
                "registers": max(kernel.registers for kernel in own),
                "spilled": spilled(own),
                "kernels": [_kernel(kernel) for kernel in own],
            }
        )
    return found


def _kernel(kernel: Kernel) -> dict[str, Any]:
    total = kernel.mix.total()
    shares = [(number, name, kernel.mix[name] / total) for number, name in enumerate(MIX) if kernel.mix[name]]
    return {
        "name": kernel.name,
        "registers": kernel.registers,
        "shared": kernel.shared,
        "stack": kernel.stack,
        "local": kernel.mix["local memory"],
        "instructions": total,
        "mix": shares,
        "words": ", ".join(f"{name} {share:.0%}" for _, name, share in sorted(shares, key=lambda s: -s[2])),
    }


def _of(op: str, runs: Sequence[Run]) -> list[Run]:
    """The runs with a case of this op, each without other ops' cases; for an implementation, the runs that timed it."""
    timed = project.implementations().get(op, op)
    own = [dataclasses.replace(run, cases=tuple(case for case in run.cases if case.op == timed)) for run in runs]
    if timed != op:
        own = [run for run in own if any(case.layer(_raw(op)) for case in run.cases)]
    return [run for run in own if run.cases]


def _raw(op: str) -> str:
    """The name of the layer of an op's raw call, or of an implementation's: "triton raw"."""
    _, _, implementation = project.op_of_folder(op).partition(".")
    return f"{implementation} raw".strip()


def _sources(run: Run, op: str) -> str | None:
    return run.document.get("sources", {}).get(op)


def _share(case: Case, op: str) -> float | None:
    raw = case.layer(_raw(op))
    return case.floor / raw.median if raw else None


def _date(text: str) -> str:
    return text[:16].replace("T", " ")


def has_tests(op: str) -> bool:
    """Whether the op's folder has a test file."""
    return any((project.kernels() / op).glob("test_*.py"))
