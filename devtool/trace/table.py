"""The report of `devtool trace` for people: tables on stderr."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

# The most rows that a table shows; --json has all of them.
_SHOWN = 12
_READ_BY = {"__repr__": "print", "__format__": "format", "__bool__": "bool()", "__int__": "int()"} | {
    "__float__": "float()", "__index__": "index", "__array__": "NumPy", "__complex__": "complex()", None: "?",
}  # fmt: skip


def print_report(report: dict[str, Any], *, metrics: bool) -> None:
    """Prints the report.

    Args:
        report: the report, from devtool.trace.script.
        metrics: also print torch_xla's counters and metrics.
    """
    from rich.console import Console

    # A pipe has no width of its own; a wide console breaks few paths.
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=True, highlight=False, width=160)
    _Printer(console, report).everything(metrics=metrics)


class _Printer:
    def __init__(self, console, report: dict[str, Any]):
        self.console, self.report = console, report

    def everything(self, *, metrics: bool) -> None:
        totals = self.report["totals"]
        device = self.report["device"] or "an unknown device"
        self.line(f"\ntrace: {self.report['script']} on {device}", "bold")
        counts = {name.replace("_", " "): count for name, count in totals.items()}
        self.line(", ".join(f"{count} {_number(name, count)}" for name, count in counts.items()))
        self.graphs()
        self.host_reads()
        self.table("syncs", ["where", "call", "count", "ms"], [
            [_place(e["place"]), _call(e["kind"]), str(e["count"]), _milliseconds(e["seconds"])]
            for e in self.report["syncs"]
        ])  # fmt: skip
        self.table("ops on the CPU", ["where", "op", "count"], [
            [", ".join(map(_place, e["places"])) or "-", e["op"], str(e["count"])] for e in self.report["fallbacks"]
        ])  # fmt: skip
        self.table("graph breaks", ["where", "reason", "count"], [
            [_place(e["place"]), e["reason"], str(e["count"])] for e in self.report["graph_breaks"]
        ])  # fmt: skip
        self.table("torch.compile compiled again", ["reason", "count"], [
            [e["reason"], str(e["count"])] for e in self.report["dynamo_recompilations"]
        ])  # fmt: skip
        self.custom_calls()
        self.device_time()
        self.table("time on the host", ["what", "count", "ms"], [
            [name, str(e["count"]), _milliseconds(e["seconds"])] for name, e in self.report["time"].items()
        ])  # fmt: skip
        self.line(_TIME_NOTE[self.report["device"] == "CUDA"])
        for note in self.report["notes"]:
            self.line(f"note: {note}")
        self.ir()
        if metrics:
            self.metrics()
        self.advice()

    def line(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self.console.print(Text(text, style=style), soft_wrap=not self.console.is_terminal)

    def table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        if not rows:
            return
        table = Table(box=SIMPLE_HEAD, padding=0, title=title, title_justify="left", title_style="bold")
        for column in columns:
            table.add_column(column, justify="right" if column in _NUMBERS else "left", overflow="fold")
        for row in rows[:_SHOWN]:
            table.add_row(*map(Text, row))
        self.console.print(table)
        if len(rows) > _SHOWN:
            self.line(f" {len(rows) - _SHOWN} more: --json FILE has them")

    def graphs(self) -> None:
        rows = [
            [
                *(_place(e["place"]), e["cause"], str(len(e["compilations"])), str(e["executions"])),
                *(_milliseconds(e["compile_seconds"]), _milliseconds(e["execute_seconds"])),
            ]
            for e in self.report["graphs"]
        ]
        self.table("graphs", ["where", "cause", "compiled", "ran", "compile ms", "run ms"], rows)
        again = [
            [_place(entry["place"]), _changes(compilation), _place(_made_at(compilation))]
            for entry in self.report["graphs"]
            for compilation in entry["compilations"]
            if not compilation["first"]
        ]
        self.table("compiled again", ["where", "because", "made at"], again)

    def host_reads(self) -> None:
        rows = [
            [_place(e["place"]), _READ_BY.get(e["by"], f".{e['by']}()"), str(e["count"]), str(e["ran_graph"]),
             _milliseconds(e["seconds"])]
            for e in self.report["host_reads"]
        ]  # fmt: skip
        self.table("values read on the host", ["where", "by", "count", "ran a graph", "ms"], rows)

    def custom_calls(self) -> None:
        calls = self.report["custom_calls"]
        rows = [[target, str(count)] for target, count in calls["targets"].items()]
        self.table("custom calls in the graphs that were compiled", ["target", "count"], rows)
        if calls["compiled"]:
            self.line(f"command buffers hold {calls['captured']} of {calls['compiled']} custom calls")

    def device_time(self) -> None:
        times = self.report["device_time"]
        if times is None:
            return
        rows = [[e["op"], str(e["calls"]), f"{1000 * e['seconds']:.3f}", f"{e['share']:.1%}"] for e in times["ops"]]
        self.table("time on the device", ["op", "calls", "ms", "share"], rows)
        self.line(f"the device was busy {times['busy']:.1%} of the time from its first op to its last")

    def ir(self) -> None:
        for graph in self.report["ir"]:
            self.line(f"\nIR traced {graph['count']} times, run at {_place(graph['place'])}", "bold")
            self.line(graph["text"])

    def metrics(self) -> None:
        rows = [[name, str(count)] for name, count in sorted(self.report["counters"].items())]
        rows += [[name, f"{d['count']} (sum {d['sum']:g})"] for name, d in sorted(self.report["metrics"].items())]
        self.line("\ncounters and metrics, times in ns; torch.compile clears the counters for each graph", "bold")
        for name, value in rows:
            self.line(f" {name}: {value}")

    def advice(self) -> None:
        advice = self.report["advice"]
        self.line("\nadvice" if advice else "\nadvice: none", "bold")
        for entry in advice:
            self.line(f" {_place(entry['place'])}: {entry['text']}")
            if entry["place"]:
                self.line(f"     {entry['place']['source']}", "cyan")


_NUMBERS = {"count", "compiled", "ran", "compile ms", "run ms", "ms", "ran a graph", "calls", "share"}
_TIME_NOTE = {
    False: "ExecuteTime is the computation itself",
    True: "ExecuteTime is only the launch: the GPU still runs after it",
}


def _number(name: str, count: int) -> str:
    return name.removesuffix("s") if count == 1 else name


def _place(place: dict[str, Any] | None) -> str:
    """file:line, with the file relative to the working directory or to site-packages, if it is in one of them."""
    if place is None:
        return "-"
    path = Path(place["file"])
    near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    parts = near.parts
    if "site-packages" in parts:
        near = Path(*parts[parts.index("site-packages") + 1 :])
    return f"{os.fspath(near)}:{place['line']}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _call(kind: str) -> str:
    return {"sync": "sync()", "sync wait": "sync(wait=True)"}.get(kind, f"{kind}()")


def _changes(compilation: dict[str, Any]) -> str:
    if compilation["changes"] is None:
        return "not known"
    texts = [f"{c['what']}: {c['before']} -> {c['after']}" for c in compilation["changes"]]
    return "; ".join(texts) or "nothing in the module: another layout or sharding"


def _made_at(compilation: dict[str, Any]) -> dict[str, Any] | None:
    return next((c["place"] for c in compilation["changes"] or () if c["place"]), None)
