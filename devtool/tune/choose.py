"""Chooses the values of each class of shapes from the times of all variants, and compares them with today's table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devtool.bench.compare import paired_shift
from devtool.tune.space import ShapeClass, Space, Table, Values

# The name of the library with today's table, beside those of the variants.
TABLE = "table"
# A case of a measured run: the bench's name, its key, and the samples of each library.
Case = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """Values that were timed, against today's table.

    Attributes:
        values: of the parameters.
        seconds: the median of a call; over several benches of a class, of their geometric mean.
        ratio: its time as a multiple of the table's, with its 99 % interval from `low` to `high`.
        is_slower: on a bench of the class it takes longer than the table, beyond the noise.
    """

    values: Values
    seconds: float
    ratio: float
    low: float
    high: float
    is_slower: bool


@dataclass(frozen=True)
class Choice:
    """What was measured of a class, and the values that it gets.

    Attributes:
        shape: the class.
        benches: names of the benches in it.
        before: the values of today's table.
        values: those that it gets: others only if they are faster beyond the noise.
        seconds: the median of a call with `values`.
        candidates: all variants that give right numbers, the fastest first.
        runner_up: the fastest but the chosen one, its time as a multiple of that of the chosen one; None if there is
            only one.
        table_ratio: the time of today's table as a multiple of that of a build with the same values for all shapes.
    """

    shape: ShapeClass
    benches: tuple[str, ...]
    before: Values
    values: Values
    seconds: float
    candidates: tuple[Candidate, ...]
    runner_up: Candidate | None
    table_ratio: tuple[float, float, float] | None

    @property
    def is_changed(self) -> bool:
        """Whether other values than today's are chosen."""
        return self.values != self.before


def library_name(space: Space, values: Values) -> str:
    """The name of a variant's library and folder: "threads-256-vectors-2"."""
    return "-".join(f"{name}-{value}" for name, value in space.named(values).items())


def choose(space: Space, table: Table, cases: Sequence[Case], noise: float) -> list[Choice]:
    """The choice for each class that has a bench.

    Args:
        space: what the op's tuning.py declares.
        table: today's.
        cases: those of a measured run.
        noise: the smallest change that counts, as a fraction.
    """
    by_class: dict[ShapeClass, list[Case]] = {}
    for case in cases:
        by_class.setdefault(space.class_of(case["key"]), []).append(case)
    return [_choose(space, shape, table[shape], by_class[shape], noise) for shape in table if shape in by_class]


def _choose(space: Space, shape: ShapeClass, before: Values, cases: Sequence[Case], noise: float) -> Choice:
    names = {values: library_name(space, values) for values in space.variants}
    timed = [values for values, name in names.items() if all(name in case["seconds"] for case in cases)]
    mean = {name: _mean(cases, name) for name in (TABLE, *(names[values] for values in timed))}
    candidates = []
    for values in timed:
        samples = mean[names[values]]
        alone = (paired_shift(case["seconds"][TABLE], case["seconds"][names[values]]) for case in cases)
        is_slower = any(low > 1 + noise for _, low, _ in alone)
        ratio = paired_shift(mean[TABLE], samples)
        candidates.append(Candidate(values, statistics.median(samples), *ratio, is_slower))
    candidates.sort(key=lambda candidate: candidate.ratio)
    faster = [c for c in candidates if c.high < 1 / (1 + noise) and not c.is_slower and c.values != before]
    values = faster[0].values if faster else before
    chosen = mean[names[values]] if values in timed else mean[TABLE]
    other = next((c for c in candidates if c.values != values), None)
    runner_up = None
    if other:
        ratio = paired_shift(chosen, mean[names[other.values]])
        runner_up = Candidate(other.values, other.seconds, *ratio, other.is_slower)
    table_ratio = paired_shift(mean[names[before]], mean[TABLE]) if before in timed else None
    benches = tuple(case["case"] for case in cases)
    return Choice(shape, benches, before, values, statistics.median(chosen), tuple(candidates), runner_up, table_ratio)


def _mean(cases: Sequence[Case], name: str) -> list[float]:
    """The geometric mean of the benches' times, for each round: each bench counts as much as any other."""
    rounds = zip(*(case["seconds"][name] for case in cases), strict=True)
    return [math.exp(statistics.fmean(map(math.log, times))) for times in rounds]
