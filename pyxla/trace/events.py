"""Reads the files that torch and torch_xla write themselves: compilations and executions, graph breaks, IR."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyxla.trace.places import Place, user_place

# PT_XLA_DEBUG_FILE: one block per compilation and per execution; each line begins with the block's title.
_BLOCK = re.compile(r"^(Compilation|Execution) Analysis: =+\n((?:\1 Analysis: .*\n)+?)\1 Analysis: =+$", re.MULTILINE)
_FRAME = re.compile(r"Analysis:   (?P<name>\S+) \((?P<file>.*):(?P<line>\d+)\)$", re.MULTILINE)
# (file, function) of a frame -> the cause. torch_xla takes its cause from the first frame, which may be the recorder's.
_CAUSES = {
    ("dynamo_bridge.py", None): "torch.compile",
    ("torch_xla.py", "_compile"): "torch_xla.compile",
    ("torch_xla.py", "sync"): "sync",
    ("xla_model.py", "mark_step"): "sync",
}


@dataclass(frozen=True)
class Event:
    """A compilation or an execution of a graph.

    Attributes:
        compiles: True for a compilation, False for an execution.
        cause: "sync", "torch.compile", "torch_xla.compile", or "read": a value was asked for before any of these.
        graph: hash of the graph.
        inputs, outputs: the number of the graph's inputs and outputs.
        place: the user's line that caused it; None if there is none.
    """

    compiles: bool
    cause: str
    graph: str
    inputs: int
    outputs: int
    place: Place | None


def graph_events(text: str) -> list[Event]:
    """The events of a file that PT_XLA_DEBUG_FILE names, in their order; a block that was cut short is left out."""
    return [_event(match[1] == "Compilation", match[2]) for match in _BLOCK.finditer(text)]


def _event(compiles: bool, block: str) -> Event:
    def field(name: str) -> str:
        found = re.search(rf"{name}: (\S+)", block)
        return found[1] if found else ""

    frames = [(frame["name"], frame["file"], int(frame["line"])) for frame in _FRAME.finditer(block)]
    called = {(Path(file).name, name) for function, file, _ in frames for name in (function, None)}
    return Event(
        compiles,
        next((cause for function, cause in _CAUSES.items() if function in called), "read"),
        field("Graph Hash"),
        int(field("Number of Graph Inputs") or 0),
        int(field("Number of Graph Outputs") or 0),
        user_place((file, line) for _, file, line in frames),
    )


@dataclass(frozen=True)
class Dynamo:
    """The graph breaks and recompilations of torch.compile.

    Attributes:
        breaks: (place, reason) of each graph break -> how often.
        recompiles: reason of a recompilation, a guard that failed -> how often.
    """

    breaks: Counter[tuple[Place | None, str]]
    recompiles: Counter[str]


def dynamo_events(text: str) -> Dynamo:
    """The graph breaks and recompilations in a file of TORCH_TRACE: lines of JSON, each followed by its text."""
    found = Dynamo(Counter(), Counter())
    for name, payload in re.findall(
        r'"artifact": \{"name": "(dynamo_graph_break_reason|recompile_reasons)".*\n((?:\t.*\n)+)', text
    ):
        lines = [line.removeprefix("\t") for line in payload.splitlines()]
        body = "\n".join(lines)
        if name == "recompile_reasons":
            found.recompiles.update(re.findall(r'^\s*"(?:\d+/\d+: )?(.*?)",?$', body, re.MULTILINE) or [body])
            continue
        frames = [(f, int(n)) for f, n in re.findall(r'^ *File "(.*)", line (\d+), in', body, re.MULTILINE)]
        reason = re.search(r"Reason: (.*)", body)
        place = user_place(reversed(frames))
        if place is None and (where := re.search(r"user code at (.*):(\d+)", body)):
            place = (where[1], int(where[2]))
        found.breaks[place, reason[1].strip() if reason else lines[0]] += 1
    return found


def ir_graphs(text: str) -> Counter[tuple[Place | None, str]]:
    """(place, IR) of each graph in a file of XLA_SAVE_TENSORS_FILE -> how often it was traced."""
    graphs: Counter[tuple[Place | None, str]] = Counter()
    for head, graph in re.findall(r"^\[\w+\]\n(.*?)^## BEGIN_GRAPH\n(.*?)^Graph Hash", text, re.MULTILINE | re.DOTALL):
        frames = [(f, int(n)) for f, n in re.findall(r"^  \S+ \((.*):(\d+)\)$", head, re.MULTILINE)]
        # Scopes are numbered across the whole process.
        graphs[user_place(frames), re.sub(r", scope=[^,]*", "", graph).strip()] += 1
    return graphs
