"""The picture of `devtool bench --plot`: a roofline, and each layer's share of the rate that bounds it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from devtool.bench.roofline import layer_names, roofline
from devtool.bench.table import rate
from devtool.errors import MISUSED, DevtoolError, error_from
from devtool.files import require_writable
from devtool.records.run_file import OURS, Case, Run

# Colours that differ in brightness too; baselines are grey.
_COLORS = {"raw": "#0b3c5d", "raw step": "#328cc1", "xla step": "#d9a441"}
_GREYS = ("#555555", "#888888", "#aaaaaa", "#cccccc", "#e0e0e0")
_INCHES_PER_CASE = 0.9


def check_plot(path: Path) -> None:
    """Raises DevtoolError, before anything is measured, if the picture could not be written."""
    if path.suffix != ".png":
        raise DevtoolError(f"bench: --plot: expected a file that ends in .png, got {path}", f"{path}.png", MISUSED)
    require_writable("bench: --plot", path)
    if importlib.util.find_spec("matplotlib") is None:
        message = "bench: --plot: expected matplotlib, got none"
        raise DevtoolError(message, "run devtool through bin/devtool, which installs it, or pip install matplotlib")


def plot_run(run: Run, path: Path) -> None:
    """Writes the picture."""
    from matplotlib.figure import Figure

    cases = [case for case in run.cases if any(layer.seconds for layer in case.layers)]
    height = max(5.0, 2 + _INCHES_PER_CASE * len(cases))
    figure = Figure(figsize=(14, height), layout="constrained", dpi=100)
    figure.suptitle(f"{run.device}, {run.document['date'][:10]}")
    left, right = figure.subplots(1, 2)
    _roofline(left, run, cases)
    _bars(right, cases)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise error_from("bench", error) from error


def _roofline(axes: Any, run: Run, cases: list[Case]) -> None:
    """Operations per second over operations per byte: the two rates are the roof."""
    roof = roofline(run)
    copy, matrix, ridge = roof.copy, roof.matrix, roof.ridge
    intensities = [ridge, *(point.intensity for point in roof.points)]
    left, right = min(intensities) / 4, max(intensities) * 4
    axes.plot([left, ridge, right], [left * copy, matrix, matrix], color="black", linewidth=1)
    axes.annotate(f"copy: {rate(copy, 'copy')}", (left, left * copy), (6, 14), textcoords="offset points")
    axes.annotate(f"matrix: {rate(matrix, 'matrix')}", (right, matrix), (-6, 6), textcoords="offset points", ha="right")
    for name in layer_names(cases):
        own = [point for point in roof.points if point.layer.name == name]
        x, y = [point.intensity for point in own], [point.speed for point in own]
        axes.plot(x, y, "o" if name in OURS else "x", color=_color(name, cases), label=name, linestyle="none")
    axes.set(
        xscale="log", yscale="log", xlim=(left, right), xlabel="operations per byte", ylabel="operations per second"
    )
    axes.set_title("roofline")
    axes.grid(alpha=0.3)


def _bars(axes: Any, cases: list[Case]) -> None:
    """How much of the copy or matrix rate each layer reaches; 100 % is the roof."""
    names = layer_names(cases)
    thickness = 0.8 / max(1, len(names))
    for number, name in enumerate(names):
        found = [(place, case, case.layer(name)) for place, case in enumerate(cases)]
        found = [(place, case, layer) for place, case, layer in found if layer]
        shares = [100 * case.floor / layer.median for _, case, layer in found]
        spreads = [share * layer.spread for share, (_, _, layer) in zip(shares, found, strict=True)]
        places = [place + (number - (len(names) - 1) / 2) * thickness for place, _, _ in found]
        axes.barh(places, shares, thickness, xerr=spreads, color=_color(name, cases), label=name, ecolor="black")
    axes.axvline(100, color="black", linewidth=1)
    several = len({case.op for case in cases}) > 1
    labels = [f"{f'{case.op} ' * several}{case.name}\n({case.bound} rate)" for case in cases]
    axes.set_yticks(range(len(cases)), labels)
    axes.invert_yaxis()
    axes.set(xlabel="% of the rate that bounds it (more is better)")
    axes.set_title("share of the device's measured rate")
    if names:
        axes.legend(loc="best", fontsize="small")


def _color(name: str, cases: list[Case]) -> str:
    peers = [other for other in layer_names(cases) if other not in OURS]
    return _COLORS[name] if name in OURS else _GREYS[peers.index(name) % len(_GREYS)]
