"""Advice on a traced script: each piece names a line, says what was seen there, and what helps."""

from __future__ import annotations

import ast
from functools import cache
from itertools import pairwise
from typing import Any

from pyxla.trace.places import Place, called_name, syntax_tree
from pyxla.trace.report import Trace, where

# A step, a read or a wait that was seen this often is part of a loop.
_REPEATED = 3
# A graph with fewer operations costs more to start than to run.
_SMALL = 4
# This many copies of one line in a graph come from a loop that ran while the graph was built.
_UNROLLED = 30

_CHANGED = {
    "parameter": "pad the input to a few fixed shapes, since each shape is compiled once",
    "shape": "pad to a few fixed shapes, since each shape is compiled once",
    "constant": "pass the number as a tensor on the device, since a constant is part of the graph",
    "attribute": "an index or attribute is part of the graph; keep it fixed, or index by a tensor",
    "operations": "take the same branches in Python each time, and keep the same tensors alive",
}


def advice(trace: Trace, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The advice for a run; empty if there is nothing to say.

    Args:
        trace: what pyxla.trace.report.read returned.
        summary: what pyxla.trace.report.summary returned for it.

    Returns:
        A {"kind", "place", "text"} for each piece.
    """
    found = [*_growing(trace), *_recompiled(summary), *_unrolled(trace), *_reads(summary), *_syncs(trace, summary)]
    for entry in summary["fallbacks"]:
        times = _times(entry["count"])
        text = f"{entry['op']} has no XLA lowering and ran on the CPU {times}, with copies to the host and back"
        found += [_advice("fallback", place, text) for place in entry["places"] or [None]]
    for entry in summary["graph_breaks"]:
        text = f"torch.compile splits its graph here: {entry['reason']}; fullgraph=True makes it an error"
        found.append(_advice("graph break", entry["place"], text))
    return found


def _advice(kind: str, place: dict[str, Any] | None, text: str) -> dict[str, Any]:
    return {"kind": kind, "place": place, "text": text}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _growing(trace: Trace) -> list[dict[str, Any]]:
    """Places where each compilation had more operations than the one before."""
    sizes: dict[Place | None, list[int]] = {}
    for event in trace.events:
        module = trace.module_of.get(event.graph)
        if event.compiles and module:
            sizes.setdefault(event.place, []).append(module.operations)
    return [
        _advice(
            "growing graph",
            where(place),
            f"the graph grew from {counts[0]} to {counts[-1]} operations in {len(counts)} compilations: nothing cuts "
            "it off; call torch_xla.sync() at the end of each step",
        )
        for place, counts in sizes.items()
        if _grows(counts)
    ]


def _grows(counts: list[int]) -> bool:
    return len(counts) >= _REPEATED and all(a < b for a, b in pairwise(counts))


def _recompiled(summary: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for entry in summary["graphs"]:
        causes = [c["changes"][0] for c in entry["compilations"] if c["changes"]]
        if len(causes) < _REPEATED - 1 or _grows([size for size in entry["operations"] if size is not None]):
            continue
        kinds = [cause["kind"] for cause in causes]
        kind = max(dict.fromkeys(kinds), key=kinds.count)
        cause = causes[kinds.index(kind)]
        text = f"compiled {_times(len(entry['compilations']))}: {cause['what']} changes "
        text += f"({cause['before']} -> {cause['after']}): {_CHANGED[kind]}"
        found.append(_advice("recompilation", cause["place"] or entry["place"], text))
    return found


def _unrolled(trace: Trace) -> list[dict[str, Any]]:
    """Lines that occur many times in one graph and are in a loop without a sync."""
    most: dict[Place, int] = {}
    for module in trace.module_of.values():
        for (place, _), count in module.lines().items():
            if place and count >= _UNROLLED and _in_loop_without_sync(place):
                most[place] = max(count, most.get(place, 0))
    return [
        _advice(
            "unrolled loop",
            where(place),
            f"{count} iterations of this loop are one graph, which compiles slowly: call torch_xla.sync() in the loop",
        )
        for place, count in most.items()
    ]


def _reads(summary: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for entry in summary["host_reads"]:
        if entry["count"] < _REPEATED:
            continue
        by = f".{entry['by']}()" if entry["by"] and not entry["by"].startswith("_") else _SPOKEN.get(entry["by"])
        text = f"{by or 'a value that the host asks for'} made the host wait for the device {_times(entry['count'])}"
        if entry["ran_graph"]:
            text += (
                f", and ran a graph of its own {_times(entry['ran_graph'])}: call torch_xla.sync() at each step's end,"
            )
        else:
            text += ":"
        found.append(_advice("host read", entry["place"], f"{text} keep the tensors and read them after the loop"))
    return found


_SPOKEN = {
    **{"__repr__": "a printed tensor", "__format__": "a formatted tensor", "__bool__": "a tensor in a condition"},
    **{"__int__": "int()", "__float__": "float()", "__index__": "a tensor as an index", "__array__": "a NumPy array"},
}


def _syncs(trace: Trace, summary: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for entry in summary["syncs"]:
        if entry["count"] >= _REPEATED and entry["kind"] != "sync":
            call = "torch_xla.sync(wait=True)" if entry["kind"] == "sync wait" else "wait_device_ops()"
            text = f"{call} made the host wait {_times(entry['count'])}, {entry['seconds']:.3f} s in all"
            text += ": it is for timing and for errors; sync() without waiting lets the host continue"
            found.append(_advice("wait", entry["place"], text))
    for entry in summary["graphs"]:
        sizes = [size for size in entry["operations"] if size is not None]
        if entry["cause"] != "sync" or not sizes or max(sizes) >= _SMALL or entry["executions"] < 2 * _REPEATED:
            continue
        text = f"{_times(entry['executions'])} a graph of at most {max(sizes)} operations ran: one sync() per step, "
        found.append(_advice("small graphs", entry["place"], text + "after the inner loop, makes them one graph"))
    return found


@cache
def _loops(file: str) -> tuple[tuple[int, int, bool], ...]:
    """For each loop of a file: its first line, its last line, and whether it calls a sync."""
    tree = syntax_tree(file)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)] if tree else []
    return tuple(
        (loop.lineno, loop.end_lineno or loop.lineno, any(_is_sync(node) for node in ast.walk(loop))) for loop in loops
    )


def _is_sync(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called_name(node) in ("sync", "mark_step")


def _in_loop_without_sync(place: Place) -> bool:
    around = [loop for loop in _loops(place[0]) if loop[0] <= place[1] <= loop[1]]
    return bool(around) and not any(syncs for _, _, syncs in around)
