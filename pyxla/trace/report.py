"""Reports what a traced script did on XLA, from the files that it left."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from linecache import getline
from pathlib import Path
from typing import Any

from pyxla.hlo import text as hlo_text
from pyxla.hlo.dump import final_thunks, in_order
from pyxla.packages import op_pattern
from pyxla.trace.causes import Change, Module, changes
from pyxla.trace.events import Event, dynamo_events, graph_events, ir_graphs
from pyxla.trace.op_times import op_times
from pyxla.trace.places import Place, only_call

_TIMES = ("LazyTracing", "CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime")
# torch_xla counts it as a fallback, but it is a read, which is among the host reads.
_NO_FALLBACK = "aten::_local_scalar_dense"


@dataclass(frozen=True)
class Files:
    """Where the traced process wrote.

    Attributes:
        records: folder of the recorder's files.
        graphs: the file of PT_XLA_DEBUG_FILE.
        modules: folder of --xla_dump_to.
        dynamo: folder of TORCH_TRACE.
        ir: stem of XLA_SAVE_TENSORS_FILE, whose name gets a number.
        since: files older than this, in seconds since the epoch, belong to an earlier run.
    """

    records: Path
    graphs: Path
    modules: Path
    dynamo: Path
    ir: Path
    since: float

    def written(self, folder: Path, pattern: str) -> list[Path]:
        """The files of this run, in the order of their numbers.

        Args:
            folder: folder of the files.
            pattern: a glob pattern.
        """
        return in_order(path for path in folder.glob(pattern) if path.stat().st_mtime >= self.since)


@dataclass
class Trace:
    """The contents of the files, before they are summarised.

    Attributes:
        events: compilations and executions, in order.
        module_of: graph -> the module that XLA compiled for it.
        changes_of: position of a compilation in `events` -> its differences from the previous graph at the same place;
            None if they are not known, absent if there was no previous graph.
        record: the record of the process that wrote last; empty if none did.
        notes: what is not known, and why.
    """

    events: list[Event] = field(default_factory=list)
    module_of: dict[str, Module] = field(default_factory=dict)
    changes_of: dict[int, list[Change] | None] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def calls(self, kind: str) -> list[dict[str, Any]]:
        """The calls that the recorder counted.

        Args:
            kind: the beginning of their kind.
        """
        return [call for call in self.record.get("calls", ()) if call["kind"].startswith(kind)]


def read(files: Files) -> Trace:
    """Reads the files that a run left.

    Args:
        files: where the run wrote.
    """
    trace = Trace()
    if files.graphs.is_file():
        trace.events = graph_events(files.graphs.read_text(errors="replace"))
    records = files.written(files.records, "record-*.json")
    if records:
        trace.record = json.loads(max(records, key=lambda path: path.stat().st_mtime).read_text())
    elif trace.events:
        trace.notes.append("the process left no record: reads, syncs, fallbacks, counters and times are not known")
    if len(records) > 1:
        trace.notes.append(f"{len(records)} processes used XLA: the graphs are from all of them, the rest is from one")
    _join_modules(trace, files)
    return trace


def _join_modules(trace: Trace, files: Files) -> None:
    paths = files.written(files.modules, "*before_optimizations.txt")
    compilations = [event for event in trace.events if event.compiles]
    # A process that was killed may have announced a compilation whose module XLA never wrote.
    if len(paths) > len(compilations) or len(paths) < len(compilations) - (not trace.record):
        got = f"{len(compilations)} compilations and {len(paths)} modules of XLA"
        trace.notes.append(f"causes are not known: there are {got}; with a persistent cache XLA writes none")
        paths = []
    modules = [Module(path.read_text()) for path in paths]
    last: dict[tuple, str] = {}
    for number, event in enumerate(trace.events):
        key = (event.place, event.cause)
        if event.compiles:
            if modules:
                trace.module_of[event.graph] = modules.pop(0)
            if key in last:
                before, after = trace.module_of.get(last[key]), trace.module_of.get(event.graph)
                trace.changes_of[number] = changes(before, after) if before and after else None
        last[key] = event.graph


def summary(trace: Trace, files: Files) -> dict[str, Any]:
    """The report, ready for JSON: places are {"file", "line", "source"}, times are seconds.

    Args:
        trace: what `read` returned.
        files: where the run wrote.
    """
    executions = Counter(event.graph for event in trace.events if not event.compiles)
    compilations = Counter(event.graph for event in trace.events if event.compiles)
    dynamo = dynamo_events("".join(p.read_text(errors="replace") for p in files.written(files.dynamo, "*.log")))
    reads = _reads(trace)
    optimized = files.written(files.modules, "*after_optimizations.txt")
    device_time, time_notes = op_times(trace.record, files.records, optimized)
    fallbacks = {n: c for n, c in trace.record.get("fallbacks", {}).items() if n != _NO_FALLBACK}
    return {
        "device": trace.record.get("device"),
        "totals": {
            "compilations": compilations.total(),
            "executions": executions.total(),
            "cache_hits": sum(max(0, count - compilations[graph]) for graph, count in executions.items()),
            "host_reads": sum(entry["count"] for entry in reads),
            "graph_breaks": dynamo.breaks.total(),
            "fallbacks": sum(fallbacks.values()),
        },
        "graphs": _graphs(trace),
        "host_reads": reads,
        "syncs": [
            {"place": where((c["file"], c["line"])), "kind": c["kind"], "count": c["count"], "seconds": c["seconds"]}
            for kind in ("sync", "wait_device_ops")
            for c in trace.calls(kind)
        ],
        "fallbacks": [
            {"op": op, "count": count, "places": [where(place) for place in _fallback_places(op, trace)]}
            for op, count in fallbacks.items()
        ],
        "graph_breaks": [
            {"place": where(place), "reason": reason, "count": count}
            for (place, reason), count in dynamo.breaks.items()
        ],
        "dynamo_recompilations": [{"reason": r, "count": c} for r, c in dynamo.recompiles.items()],
        "custom_calls": _custom_calls(trace, files),
        "time": {
            name: {"count": data["count"], "seconds": data["sum"] / 1e9}
            for name in _TIMES
            if (data := trace.record.get("metrics", {}).get(name))
        },
        "device_time": device_time,
        "counters": trace.record.get("counters", {}),
        "metrics": trace.record.get("metrics", {}),
        "ir": [
            {"place": where(place), "count": count, "text": text}
            for path in files.written(files.ir.parent, f"{files.ir.name}.*")
            for (place, text), count in ir_graphs(path.read_text()).items()
        ],
        "notes": [*trace.notes, *time_notes],
    }


def where(place: Place | None) -> dict[str, Any] | None:
    """A place with its source line.

    Args:
        place: file and line.
    """
    return place and {"file": place[0], "line": place[1], "source": getline(*place).strip()}


def _graphs(trace: Trace) -> list[dict[str, Any]]:
    """One entry per place and cause: its compilations with what changed, its executions, its times."""
    times = {True: list(_samples(trace, "CompileTime")), False: list(_samples(trace, "ExecuteTime"))}
    files = {event.place[0] for event in trace.events if event.place}
    entries: dict[tuple, dict[str, Any]] = {}
    for number, event in enumerate(trace.events):
        entry = entries.setdefault(
            (event.place, event.cause),
            {
                "place": where(event.place),
                "cause": event.cause,
                "compilations": [],
                "executions": 0,
                "compile_seconds": None,
                "execute_seconds": None,
                "operations": [],
            },
        )
        name = "compile_seconds" if event.compiles else "execute_seconds"
        if own := times[event.compiles]:
            entry[name] = (entry[name] or 0) + own.pop(0)
        if not event.compiles:
            entry["executions"] += 1
            continue
        module = trace.module_of.get(event.graph)
        entry["operations"].append(module.operations if module else None)
        found = trace.changes_of.get(number, [])
        entry["compilations"].append(
            {
                "graph": event.graph,
                "inputs": event.inputs,
                "outputs": event.outputs,
                "first": number not in trace.changes_of,
                "changes": found and [asdict(change) | {"place": where(_made_at(change, files))} for change in found],
            }
        )
    return list(entries.values())


def _made_at(change: Change, files: set[str]) -> Place | None:
    """The source line of a change; a custom call has none, but its op may be called on only one line."""
    named = op_pattern().search(change.what)
    op = change.call or (named and named[1])
    return change.place or (only_call(op, files) if op else None)


def _samples(trace: Trace, name: str) -> Iterable[float]:
    """Seconds of each event, in order; none if torch_xla has dropped the first ones."""
    samples = trace.record.get("samples", {}).get(name, [])
    complete = len(samples) == trace.record.get("metrics", {}).get(name, {}).get("count")
    return (value / 1e9 for value in samples) if complete else ()


def _reads(trace: Trace) -> list[dict[str, Any]]:
    """The reads of values by the host: by place, with how often a graph had to run first."""
    ran = Counter(e.place for e in trace.events if not e.compiles and e.cause == "read")
    grouped: dict[tuple[Place, str], dict[str, Any]] = {}
    for call in trace.calls("read "):
        place = (call["file"], call["line"])
        entry = {"place": where(place), "by": call["kind"].removeprefix("read "), "count": call["count"]}
        grouped[place, call["kind"]] = entry | {"seconds": call["seconds"], "ran_graph": ran.pop(place, 0)}
    unknown = [
        {"place": where(place), "by": None, "count": count, "seconds": None, "ran_graph": count}
        for place, count in ran.items()
        if not _is_fallback(place, trace)
    ]
    return [*grouped.values(), *unknown]


def _is_fallback(place: Place | None, trace: Trace) -> bool:
    return any(place in _fallback_places(op, trace) for op in trace.record.get("fallbacks", ()))


def _fallback_places(op: str, trace: Trace) -> list[Place]:
    """The lines that name the op, among those where a value was read, but not by a method of a tensor."""
    if op == _NO_FALLBACK:
        return []
    name = op.removeprefix("aten::").partition(".")[0].strip("_").rpartition("_")
    called = {(call["file"], call["line"]) for call in trace.calls("read ")}
    asked = dict.fromkeys(e.place for e in trace.events if e.place and e.cause == "read" and e.place not in called)
    return [place for place in asked if (name[2] or name[0]) in getline(*place)]


def _custom_calls(trace: Trace, files: Files) -> dict[str, Any]:
    targets: dict[str, int] = defaultdict(int)
    for module in trace.module_of.values():
        for call in module.custom_calls:
            targets[call.target] += 1
    thunks = final_thunks(files.written(files.modules, "*thunk_sequence*.txt"))
    counts = [hlo_text.captured_calls(path.read_text()) for path in thunks]
    return {
        "targets": dict(targets),
        # Only XLA:CUDA has command buffers.
        "captured": sum(captured for captured, _ in counts) if thunks else None,
        "compiled": sum(total for _, total in counts) if thunks else None,
    }
