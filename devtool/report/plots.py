"""The plots of `devtool report`: plain SVG. The page sets the colours by class, for light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from devtool.bench.roofline import layer_names
from devtool.bench.roofline import roofline as roofline_of
from devtool.bench.table import rate
from devtool.records.run_file import Run

_LEFT, _TOP, _HEIGHT = 62, 14, 190
_STEP = 19
# For the space of a case's label below the axis: the width of a character, and the sine of its angle (55 degrees).
_CHARACTER, _SINE = 5.6, 0.82


@dataclass(frozen=True)
class Error:
    """The worst error of a case.

    Attributes:
        case: its name.
        share: the error as a share of what is allowed; None if no check got as far as comparing.
        error: how far the worst element is off.
        allowed: how far it may be.
        ok: whether all checks of the case passed.
    """

    case: str
    share: float | None
    error: float
    allowed: float
    ok: bool


def accuracy(errors: Sequence[Error], label: str) -> str:
    """The worst error of each case, below a line for the allowed error; a cross on the line: a check failed."""
    width, foot = _LEFT + _STEP * len(errors) + 40, _TOP + _HEIGHT

    def y(share: float) -> float:
        return foot - (_HEIGHT - 24) * share

    body = [_row(y(share), width, f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75)]
    body.append(f'<path class="limit" d="M{_LEFT - 6} {y(1):.1f}H{width}"/>')
    body += [_text("tick", _LEFT - 10, y(1) + 4, "100%", "end"), _text("note", _LEFT, y(1) - 7, "allowed")]
    for number, e in enumerate(errors):
        x, share = _LEFT + _STEP * (number + 0.7), 1 if not e.ok or e.share is None else e.share
        tip = f"{e.case}: " + (f"error {e.error:.2g}, allowed {e.allowed:.2g}" if e.ok else "FAILED")
        body.append(f'<g class="{"ok" if e.ok else "bad"}"><title>{escape(tip)}</title>')
        body.append(
            f'<path class="stem" d="M{x:.1f} {foot}V{y(share):.1f}"/>{_mark(0 if e.ok else 4, x, y(share), "dot")}'
        )
        turned = f'transform="rotate(-55 {x + 4:.1f} {foot + 12})"'
        body.append(f'<text class="case" x="{x + 4:.1f}" y="{foot + 12}" {turned}>{escape(e.case)}</text></g>')
    below = 14 + _SINE * _CHARACTER * max((len(e.case) for e in errors), default=0)
    return _svg("accuracy", width, foot + below, label, body)


def roofline(run: Run, label: str) -> str | None:
    """Operations per second over operations per byte, with the two measured rates; None if no case computes."""
    roof = roofline_of(run)
    if not roof.points:
        return None
    copy, matrix, ridge = roof.copy, roof.matrix, roof.ridge
    at, speeds = [point.intensity for point in roof.points], [point.speed for point in roof.points]
    x0, x1 = (math.log10(value) for value in (min(*at, ridge) / 3, max(*at, ridge) * 3))
    y0, y1 = (math.log10(value) for value in (min(*speeds, copy * 10**x0) / 1.5, max(*speeds, matrix) * 3))
    width, height, foot = 620.0, 300.0, 262.0

    def x(value: float) -> float:
        return _LEFT + (width - _LEFT - 16) * (math.log10(value) - x0) / (x1 - x0)

    def y(value: float) -> float:
        return foot - (foot - _TOP) * (math.log10(value) - y0) / (y1 - y0)

    body = [_row(y(10.0**k), width, _unit(10.0**k)) for k in _every(range(math.ceil(y0), math.floor(y1) + 1), 6)]
    for k in _every(range(math.ceil(x0), math.floor(x1) + 1), 8):
        body.append(f'<path class="grid" d="M{x(10.0**k):.1f} {_TOP}V{foot:.1f}"/>')
        body.append(_text("tick", x(10.0**k), foot + 16, f"{10.0**k:g}", "middle"))
    left, right = 10**x0, 10**x1
    near = left * (ridge / left) ** 0.2
    line = f"M{x(left):.1f} {y(copy * left):.1f}L{x(ridge):.1f} {y(matrix):.1f}H{x(right):.1f}"
    body.append(f'<path class="roof" d="{line}"/>')
    body.append(_text("note", x(right), y(matrix) - 7, rate(matrix, "matrix"), "end"))
    body.append(_text("note", x(near) + 8, y(copy * near) + 14, rate(copy, "copy")))
    body.append(_text("tick", (width + _LEFT) / 2, height - 6, "operations per byte", "middle"))
    body.append(_text("tick", _LEFT - 10, _TOP - 2, "FLOP/s", "end"))
    names = layer_names(run.cases)
    for point in roof.points:
        case, layer = point.case, point.layer
        number = names.index(layer.name)
        tip = f"{case.name}, {layer.name}: {rate(case.rate(layer.median), case.bound)}, {case.floor / layer.median:.0%}"
        mark = _mark(number % _SHAPES, x(point.intensity), y(point.speed), f"series s{number}")
        body.append(f"<g><title>{escape(tip)}</title>{mark}</g>")
    return _svg("roofline", width, height, label, body)


def swatch(number: int) -> str:
    """The mark of a layer, for a legend."""
    return _svg("swatch", 14, 14, "", [_mark(number % _SHAPES, 7, 7, f"series s{number}")])


def history(shares: Sequence[float], label: str) -> str:
    """A small line plot of the shares of the rate, from the oldest run to the newest; the top is the largest, or 1."""
    width, height = 132.0, 34.0
    top = max(1.0, *shares)
    step = (width - 12) / max(1, len(shares) - 1)
    points = [(6 + step * i, height - 5 - (height - 10) * share / top) for i, share in enumerate(shares)]
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    full = height - 5 - (height - 10) / top
    body = [f'<path class="grid" d="M0 {full:.1f}H{width}"/>', f'<path class="line" d="M{line}"/>']
    body += [_mark(0, *points[-1], "dot")]
    return _svg("history", width, height, label, body)


_SHAPES = 6


def _mark(shape: int, x: float, y: float, kind: str) -> str:
    at = f'class="{kind}" transform="translate({x:.1f} {y:.1f})"'
    paths = ("", "M-4-4h8v8h-8z", "M0-5.5L5.5 0 0 5.5-5.5 0z", "M0-5L5 4H-5z", "M-4-4L4 4M4-4L-4 4", "M0-5V5M-5 0H5")
    return f'<path {at} d="{paths[shape]}"/>' if shape else f'<circle {at} r="4.2"/>'


def _svg(kind: str, width: float, height: float, label: str, body: Iterable[str]) -> str:
    about = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg class="plot {kind}" {about} {size}>{"".join(body)}</svg>'


def _row(y: float, width: float, text: str) -> str:
    line = f'<path class="grid" d="M{_LEFT - 6} {y:.1f}H{width:.0f}"/>'
    return line + _text("tick", _LEFT - 10, y + 4, text, "end")


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _every(numbers: range, most: int) -> list[int]:
    """At most `most` of the numbers, evenly spaced."""
    return list(numbers)[:: math.ceil(len(numbers) / most) or 1]


def _unit(value: float) -> str:
    return rate(value, "matrix").replace(".00", "").replace("FLOP/s", "")
