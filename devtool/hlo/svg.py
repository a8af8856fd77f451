"""A module as a picture: an SVG with the custom calls highlighted and the copies around them marked."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

# Of a larger module only the instructions near a custom call are drawn.
MOST_NODES = 300
_NEAR = 3
_CHARACTER, _LINE, _MARGIN, _GAP = 7.3, 16, 24, 36

# The colours follow the reader's colour scheme; a page that embeds the picture may set the variables itself.
STYLE = """
svg.hlo { --paper: #fff; --ink: #1c2024; --box: #f3f5f7; --line: #8b959e;
  --call: #0b62c4; --on-call: #fff; --copy: #b34700; background: var(--paper); font: 12px ui-monospace, monospace; }
@media (prefers-color-scheme: dark) { svg.hlo { --paper: #15181b; --ink: #e6e9ec; --box: #23282d; --line: #7d8790;
  --call: #6cb2ff; --on-call: #0b1016; --copy: #ff9d57; } }
.hlo text { fill: var(--ink); text-anchor: middle; } .hlo text.title { text-anchor: start; font-weight: bold; }
.hlo rect { fill: var(--box); stroke: var(--line); } .hlo path { fill: none; stroke: var(--line); }
.hlo .call rect { fill: var(--call); stroke: var(--call); } .hlo .call text { fill: var(--on-call); font-weight: bold; }
.hlo .copy rect { stroke: var(--copy); stroke-width: 2; stroke-dasharray: 5 3; } .hlo .end rect { rx: 12px; }
"""


@dataclass
class Box:
    """An instruction in the picture; grandalf reads w and h and writes xy, the centre.

    Attributes:
        key: name of the instruction, or of the output.
        kind: "call", "copy", "end" (an argument or an output) or "other".
        lines: its lines of text.
        tip: the tooltip.
    """

    key: str
    kind: str
    lines: tuple[str, ...]
    tip: str
    xy: tuple[float, float] = (0.0, 0.0)

    @property
    def w(self) -> float:
        """Width."""
        return max(len(line) for line in self.lines) * _CHARACTER + 16

    @property
    def h(self) -> float:
        """Height."""
        return len(self.lines) * _LINE + 12


@dataclass(frozen=True)
class Drawing:
    """A module's picture.

    Attributes:
        width: in pixels.
        height: in pixels.
        body: SVG elements.
        left_out: how many instructions were too far from a custom call to be drawn.
    """

    width: float
    height: float
    body: str
    left_out: int


def draw(modules: Iterable[Any], stage: str) -> tuple[str, int]:
    """The modules as one SVG, one below the other, and how many instructions were left out.

    Args:
        modules: the modules of a pyxla.Inspection.
        stage: "before" or "after": the text to draw.
    """
    drawings = [_draw(module, stage) for module in modules] or [Drawing(0, 0, "", 0)]
    top, parts = float(_MARGIN), []
    for drawing in drawings:
        parts.append(f'<g transform="translate({_MARGIN} {top:.0f})">{drawing.body}</g>')
        top += drawing.height + _MARGIN
    width = max(drawing.width for drawing in drawings) + 2 * _MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="hlo" role="img" aria-label="HLO graph" width="{width:.0f}"'
    size = f'height="{top:.0f}" viewBox="0 0 {width:.0f} {top:.0f}"'
    return f"{head} {size}>\n<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n", sum(
        drawing.left_out for drawing in drawings
    )


def _draw(module: Any, stage: str) -> Drawing:
    boxes, edges = _boxes_and_edges(module, stage)
    boxes, left_out = _near_the_calls(boxes, edges)
    edges = [edge for edge in edges if edge[0] in boxes and edge[1] in boxes]
    width, height, paths = _place(boxes, edges)
    title = f"{module.name}, {stage} optimisation"
    top = 2 * _LINE
    body = [f'<text class="title" x="0" y="{_LINE}">{escape(title)}</text>', f'<g transform="translate(0 {top})">']
    body += [f'<path d="{path}"/>' for path in paths]
    body += [_box(box) for box in boxes.values()]
    return Drawing(max(width, len(title) * _CHARACTER), height + top, "\n".join([*body, "</g>"]), left_out)


def _boxes_and_edges(module: Any, stage: str) -> tuple[dict[str, Box], list[tuple[str, str]]]:
    from pyxla.hlo.graph import CALLS, Graph

    graph = Graph(getattr(module, stage))
    targets = _targets(getattr(module, stage))
    copies = {copy.name for copy in module.copies} if stage == "after" else set()
    boxes: dict[str, Box] = {}
    edges: list[tuple[str, str]] = []
    for node in graph.running:
        if node.opcode == "constant":
            continue
        fused = dict.fromkeys(n.opcode for n in graph.body(node) if n.opcode not in ("parameter", "constant"))
        kind, label = "other", node.opcode
        if node.opcode in CALLS:
            kind, label = "call", targets.get(node.name, node.opcode)
        elif node.name in copies:
            kind = "copy"
        elif node.name in graph.parameters:
            kind, label = "end", f"argument {graph.parameters[node.name]}"
        inner = ", ".join(fused)
        tip = f"{node.name} = {node.shape} {node.opcode}" + (f": {inner}" if inner else "")
        lines = (label, *([_short(inner)] if inner else []), _short(node.shape))
        boxes[node.name] = Box(node.name, kind, lines, tip)
        sources = dict.fromkeys(s.node.name for o in node.operands if (s := graph.source(o)))
        edges += [(source, node.name) for source in sources]
    for number, output in enumerate(graph.outputs):
        key = f"output {number}"
        boxes[key] = Box(key, "end", (key,), key)
        edges.append((output.node.name, key))
    return boxes, [edge for edge in edges if edge[0] in boxes]


def _targets(text: str) -> dict[str, str]:
    from pyxla.hlo.text import custom_calls

    return {call.name: call.target for call in custom_calls(text)}


def _short(text: str) -> str:
    return text if len(text) <= 34 else f"{text[:33]}…"


def _near_the_calls(boxes: dict[str, Box], edges: list[tuple[str, str]]) -> tuple[dict[str, Box], int]:
    """All boxes, or of a large module those within a few steps of a custom call; and how many are left out."""
    if len(boxes) <= MOST_NODES:
        return boxes, 0
    beside: dict[str, set[str]] = {}
    for a, b in edges:
        beside.setdefault(a, set()).add(b)
        beside.setdefault(b, set()).add(a)
    near = {key for key, box in boxes.items() if box.kind == "call"} or set(list(boxes)[:1])
    for _ in range(_NEAR):
        wider = near | {other for key in near for other in beside.get(key, ())}
        near = wider if len(wider) <= MOST_NODES else near
    kept = {key: box for key, box in boxes.items() if key in near}
    return kept, len(boxes) - len(kept)


def _place(boxes: dict[str, Box], edges: list[tuple[str, str]]) -> tuple[float, float, list[str]]:
    """Places all boxes, from top to bottom in the direction of the data; returns width, height and the edges' paths."""
    from grandalf.graphs import Edge, Graph, Vertex
    from grandalf.layouts import SugiyamaLayout
    from grandalf.routing import EdgeViewer

    vertices = {key: Vertex(box) for key, box in boxes.items()}
    for key, vertex in vertices.items():
        vertex.view = boxes[key]
    lines = [Edge(vertices[a], vertices[b]) for a, b in edges]
    for line in lines:
        line.view = EdgeViewer()
    left = bottom = 0.0
    paths = []
    for component in Graph(list(vertices.values()), lines).C:
        layout = SugiyamaLayout(component)
        layout.xspace, layout.yspace = _GAP, _GAP
        layout.init_all()
        layout.draw()
        inside = [vertex.view for vertex in component.sV]
        x = left - min(box.xy[0] - box.w / 2 for box in inside)
        y = -min(box.xy[1] - box.h / 2 for box in inside)
        for box in inside:
            box.xy = (box.xy[0] + x, box.xy[1] + y)
        for edge in component.sE:
            points = [(px + x, py + y) for px, py in getattr(edge.view, "_pts", [])[1:-1]]
            start, end = edge.v[0].view, edge.v[1].view
            head, tail = (start.xy[0], start.xy[1] + start.h / 2), (end.xy[0], end.xy[1] - end.h / 2)
            paths.append(_path([head, *sorted(points, key=lambda point: point[1]), tail]))
        left = max(box.xy[0] + box.w / 2 for box in inside) + _GAP
        bottom = max(bottom, *(box.xy[1] + box.h / 2 for box in inside))
    return left - _GAP, bottom, paths


def _path(points: list[tuple[float, float]]) -> str:
    """A curve through the points that is vertical at each of them."""
    text = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        middle = (y0 + y1) / 2
        text += f" C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return text


def _box(box: Box) -> str:
    x, y = box.xy
    lines = "".join(
        f'<text x="{x:.1f}" y="{y - box.h / 2 + 6 + _LINE * (i + 0.75):.1f}">{escape(line)}</text>'
        for i, line in enumerate(box.lines)
    )
    rect = f'<rect x="{x - box.w / 2:.1f}" y="{y - box.h / 2:.1f}" width="{box.w:.1f}" height="{box.h:.1f}" rx="3"/>'
    return f'<g class="{box.kind}"><title>{escape(box.tip)}</title>{rect}{lines}</g>'
