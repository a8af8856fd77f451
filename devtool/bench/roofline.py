"""The data of a run's roofline, for the two commands that draw it: `devtool bench --plot` and `devtool report`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from devtool.records.run_file import OURS, Case, Layer, Run


@dataclass(frozen=True)
class Point:
    """A layer of a case: its operations per byte and per second."""

    case: Case
    layer: Layer
    intensity: float
    speed: float


@dataclass(frozen=True)
class Roofline:
    """Two measured rates bound the speed: `copy` times the intensity up to the `ridge`, `matrix` from there on."""

    copy: float
    matrix: float
    points: list[Point]

    @property
    def ridge(self) -> float:
        return self.matrix / self.copy


def roofline(run: Run) -> Roofline:
    """The roof and the timed layers of cases that compute."""
    points = [
        Point(case, layer, case.operations / case.bytes, case.operations / layer.median)
        for case in run.cases
        for layer in case.layers
        if layer.seconds and case.operations and case.bytes
    ]
    return Roofline(run.rate("copy"), run.rate("matrix"), points)


def layer_names(cases: Iterable[Case]) -> list[str]:
    """The layers that were timed, ours first."""
    names = dict.fromkeys(layer.name for case in cases for layer in case.layers if layer.seconds)
    return [*(name for name in OURS if name in names), *(name for name in names if name not in OURS)]
