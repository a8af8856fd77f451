"""Compares two runs of `devtool bench`: a ratio with its interval for each case and layer."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import click

from devtool.bench.table import duration
from devtool.errors import DevtoolError
from devtool.records.run_file import Case, Run, is_ours

# The quantile of a two-sided 99 % interval. A run has some fifty ratios; with 95 % one in twenty is wrong by chance.
_QUANTILE = 2.576
# The name of the row for the reference run.
CONTROL = "control"


@dataclass(frozen=True)
class Ratio:
    """How the time of a layer changed.

    Attributes:
        case, layer: the names of the case and of the layer.
        before, now: medians in seconds.
        value: the ratio, now / before.
        low, high: its 99 % interval.
        verdict: "slower", "faster" or "" where the difference is within the noise.
    """

    case: str
    layer: str
    before: float
    now: float
    value: float
    low: float
    high: float
    verdict: str


def shift(before: Sequence[float], now: Sequence[float]) -> tuple[float, float, float]:
    """The ratio now / before and its 99 % interval, by Hodges and Lehmann: the median of all pairs' ratios.

    The interval contains the ratios that the Mann-Whitney test would not reject. It does not depend on how the times
    are distributed, and one outlier does not move it.

    Source: Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods", 3rd edition, 2014, section 4.2 and 4.3.
    """
    ratios = sorted(math.log(b) - math.log(a) for a in before for b in now)
    m, n = len(before), len(now)
    rank = math.floor(m * n / 2 - _QUANTILE * math.sqrt(m * n * (m + n + 1) / 12))
    if rank < 1:
        # Too few samples to reject anything.
        return math.exp(statistics.median(ratios)), 0.0, math.inf
    return math.exp(statistics.median(ratios)), math.exp(ratios[rank - 1]), math.exp(ratios[-rank])


def paired_shift(before: Sequence[float], now: Sequence[float]) -> tuple[float, float, float]:
    """As `shift`, for samples of the same rounds: the median of the means of all pairs of rounds' ratios.

    Source: as there, section 3.2 and 3.3.
    """
    ratios = [math.log(b) - math.log(a) for a, b in zip(before, now, strict=True)]
    n = len(ratios)
    means = sorted((ratios[i] + ratios[j]) / 2 for i in range(n) for j in range(i, n))
    rank = math.floor(n * (n + 1) / 4 - _QUANTILE * math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    if rank < 1:
        return math.exp(statistics.median(means)), 0.0, math.inf
    return math.exp(statistics.median(means)), math.exp(means[rank - 1]), math.exp(means[-rank])


def compare_runs(before: Run, now: Run, noise: float) -> list[Ratio]:
    """The ratios of all layers that both runs have timed, and of the control in each case.

    A layer is slower if its whole interval is above what the control and `noise` explain.

    Args:
        before, now: the runs, on one device.
        noise: the smallest change that counts, as a share: two runs of the same kernel may differ by this, apart from
            the speed of the machine.
    """
    found = []
    for case in now.cases:
        old = _counterpart(before, case)
        if old is None:
            continue
        slower, faster = 1.0, 1.0
        if old.control and case.control:
            value, low, high = shift(old.control, case.control)
            medians = statistics.median(old.control), statistics.median(case.control)
            found.append(Ratio(f"{case.op} {case.name}", CONTROL, *medians, value, low, high, ""))
            slower, faster = max(1.0, high), min(1.0, low)
        for layer in case.lasting_layers:
            was = old.layer(layer.name)
            if was is None or not layer.seconds:
                continue
            value, low, high = shift(was.seconds, layer.seconds)
            verdict = "slower" if low > slower * (1 + noise) else "faster" if high < faster / (1 + noise) else ""
            name = f"{case.op} {case.name}"
            found.append(Ratio(name, layer.name, was.median, layer.median, value, low, high, verdict))
    return found


def check_device(before: Run, about: dict) -> None:
    """Raises DevtoolError unless the earlier run was on the device that `about` describes."""
    if before.document["device"] != about:
        expected, got = (_describe(device) for device in (about, before.document["device"]))
        message = f"bench: --compare: expected a run on {expected}, got one on {got}"
        raise DevtoolError(message, "compare runs of one machine; --device chooses")


def check_cases(before: Run, now: Run, *, selected: bool, ops: Collection[str] | None = ()) -> None:
    """Raises DevtoolError if there is nothing to compare, or this run lacks what the earlier one has.

    Args:
        before, now: the runs.
        selected: --case or --layer chose what was timed now, so the rest may be missing.
        ops: what was asked for now, besides the ops that this run has; None: all ops of the earlier run.
    """
    lost = [] if selected else _lost(before, now, ops)
    if lost:
        message = f"bench: --compare: expected the cases of the earlier run, got none of {', '.join(lost)}"
        raise DevtoolError(message, "if they were removed on purpose, save a new run with --json")
    if not any(_counterpart(before, case) for case in now.cases):
        have = ", ".join(f"{case.op} {case.name}" for case in before.cases) or "none"
        message = f"bench: --compare: expected a run with these cases, got one with others ({have})"
        raise DevtoolError(message, "devtool bench --json FILE saves a run with them")


def compare_layers(run: Run, other: str) -> list[Ratio]:
    """The ratio of each layer of an op to the layer of another library in the same run.

    Args:
        run: the run.
        other: the name of the other library: "HEAD" for "HEAD raw".
    """
    found = []
    for case in run.cases:
        for layer in case.layers:
            was = case.layer(f"{other} {layer.name}")
            if was is not None and layer.seconds:
                value, low, high = paired_shift(was.seconds, layer.seconds)
                name = f"{case.op} {case.name}"
                found.append(Ratio(name, layer.name, was.median, layer.median, value, low, high, ""))
    return found


def require_at_most(ratios: Sequence[Ratio], limit: float, other: str) -> None:
    """Raises DevtoolError if a layer takes longer than the other library's, with its whole interval above the limit."""
    worse = [ratio for ratio in ratios if ratio.low > limit]
    if worse or not ratios:
        listed = ", ".join(f"{r.case} {r.layer} {r.value:.3f} ({r.low:.3f} to {r.high:.3f})" for r in worse)
        got = listed or "no case that both take"
        message = f"bench: --against: expected at most {limit:g} times the time of {other}, got {got}"
        raise DevtoolError(message, "measure again on an idle machine; if it stays slower, check what changed")


def print_ratios(ratios: Sequence[Ratio], before: Run, now: Run) -> None:
    """Prints the table on stdout."""
    print_table(f"against the run of {before.document['date']}", ratios)
    click.echo("control: a write that is the same in both runs, for the speed of the machine")
    for case in now.cases:
        if not _counterpart(before, case):
            click.echo(f"new, not compared: {case.op} {case.name}")


def print_table(heading: str, ratios: Sequence[Ratio], digits: int = 2) -> None:
    """Prints ratios on stdout, with so many digits."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    click.echo(heading)
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in ("case", "layer"):
        table.add_column(name, no_wrap=True)
    for name in ("before", "now", "ratio", "99 % interval", ""):
        table.add_column(name, justify="right", no_wrap=True)
    last = None
    for ratio in ratios:
        interval = f"{ratio.low:.{digits}f} to {ratio.high:.{digits}f}"
        value = f"{ratio.value:.{digits}f}"
        cells = (duration(ratio.before), duration(ratio.now), value, interval, ratio.verdict)
        style = "bold red" if ratio.verdict == "slower" and is_ours(ratio.layer) else ""
        table.add_row("" if ratio.case == last else ratio.case, ratio.layer, *(Text(c, style=style) for c in cells))
        last = ratio.case
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def require_no_regression(ratios: Sequence[Ratio]) -> None:
    """Raises DevtoolError if a layer of ours is slower beyond the noise; a baseline may be."""
    worse = [r for r in ratios if r.verdict == "slower" and is_ours(r.layer)]
    if worse:
        listed = ", ".join(f"{r.case} {r.layer} {r.value:.2f} ({r.low:.2f} to {r.high:.2f})" for r in worse)
        message = f"bench: --compare: expected no layer to take longer than the noise explains, got {listed}"
        raise DevtoolError(message, "measure again on an idle machine; if it stays slower, check what changed")


def _counterpart(run: Run, case: Case) -> Case | None:
    return next((c for c in run.cases if (c.op, c.name) == (case.op, case.name)), None)


def _lost(before: Run, now: Run, ops: Collection[str] | None) -> list[str]:
    """The cases of these ops and of this run's, and the layers of ours, that only the earlier run has."""
    judged, lost = {case.op for case in (before if ops is None else now).cases} | set(ops or ()), []
    for old in before.cases:
        new = _counterpart(now, old)
        if old.op in judged and new is None:
            lost.append(f"{old.op} {old.name}")
        elif new is not None:
            lost += [
                f"{old.op} {old.name} {la.name}"
                for la in old.lasting_layers
                if is_ours(la.name) and la.seconds and not new.layer(la.name)
            ]
    return lost


def _describe(about: dict) -> str:
    return ", ".join(f"{name} {value}" if name == "threads" else str(value) for name, value in about.items())
