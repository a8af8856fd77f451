"""Times things side by side in one run: a round runs every candidate once, so that noise affects all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def paired(
    candidates: dict[str, Callable[[], object]], *, rounds: int = 30, warm_up: int = 3
) -> dict[str, list[float]]:
    """Seconds per round of each candidate, in the same order of rounds."""
    for call in candidates.values():
        for _ in range(warm_up):
            call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def ratio(times: dict[str, list[float]], name: str, baseline: str) -> tuple[float, float, float]:
    """Median and quartiles of name / baseline, round by round."""
    ratios = [a / b for a, b in zip(times[name], times[baseline], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def table(title: str, rows: list[tuple[str, dict[str, list[float]]]], name: str, baseline: str) -> None:
    """Prints one line per row: medians in microseconds, and the ratio with its quartiles."""
    print(f"\n{title}\n{'':32} {name + ' us':>18} {baseline + ' us':>18}   ratio (quartiles)")
    for label, times in rows:
        ours, theirs = statistics.median(times[name]) * 1e6, statistics.median(times[baseline]) * 1e6
        middle, low, high = ratio(times, name, baseline)
        print(f"{label:32} {ours:18.1f} {theirs:18.1f}   {middle:.2f} ({low:.2f} to {high:.2f})")
