"""The document that a run of `devtool bench` is kept in: JSON, as pyxla/benchmark/run.py makes it."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from devtool.errors import DevtoolError, error_from
from devtool.files import write_atomic

# As pyxla.benchmark.run.SCHEMA; a test compares them.
SCHEMA = 1
# Whose times are ours to answer for, not a peer's.
OURS = ("raw", "raw step", "xla step")


def is_ours(layer: str) -> bool:
    """Whether it is one of these, or one of an implementation's: "triton raw"."""
    return layer in OURS or layer.endswith(tuple(f" {name}" for name in OURS))


@dataclass(frozen=True)
class Layer:
    """A layer of a bench.

    Attributes:
        name: "raw", "torch", ...
        seconds: of a call, one sample per round; empty if it was not timed.
        calls: of a step.
        skipped, refused: why it was not timed: it cannot be had, or its numbers are wrong.
    """

    name: str
    seconds: tuple[float, ...] = ()
    calls: int = 1
    skipped: str | None = None
    refused: str | None = None

    @property
    def median(self) -> float:
        """Of the samples."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a share of the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 2 / self.median


@dataclass(frozen=True)
class Case:
    """A bench of an op: its layers, and what a call of it takes at least.

    Attributes:
        op, name: which one.
        bytes, operations: the fewest that a call must move and do.
        floor: seconds that these take at the rates measured in the same run.
        bound: which of the two rates sets the floor: "copy" or "matrix".
        layers: in the order of the table.
        control: seconds of a write that is the same in every run, taken in the same rounds: the machine's own speed.
        checked: what was compared with the reference: "all", or a sample.
        refused: why nothing was timed: the kernel's numbers are wrong.
    """

    op: str
    name: str
    bytes: int
    operations: int
    floor: float
    bound: str
    layers: tuple[Layer, ...]
    control: tuple[float, ...]
    checked: str
    refused: str | None

    def layer(self, name: str) -> Layer | None:
        """The layer of this name, if it was timed."""
        return next((layer for layer in self.layers if layer.name == name and layer.seconds), None)

    def rate(self, seconds: float) -> float:
        """Bytes or operations per second of a call that takes so long, whichever bounds it."""
        return (self.bytes if self.bound == "copy" else self.operations) / seconds


@dataclass(frozen=True)
class Run:
    """A whole run.

    Attributes:
        document: all of it, as it is in the file.
        cases: its benches.
    """

    document: dict[str, Any]
    cases: tuple[Case, ...]

    @property
    def device(self) -> str:
        """What it ran on, in words."""
        about = self.document["device"]
        more = f"{about['threads']} threads" if "threads" in about else about.get("driver", "")
        return f"{about['name']}, {more}" if more else about["name"]

    def rate(self, name: str) -> float:
        """What the device reached: bytes per second ("copy") or operations per second ("matrix")."""
        return self.document["rates"][name]["per_second"]


def parse_run(document: Any) -> Run:
    """The run that a document holds. Raises KeyError, TypeError, ValueError or OverflowError if it holds none."""
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']}")
    rates = {name: _positive(document["rates"][name]["per_second"]) for name in ("copy", "matrix")}
    run = Run(document, tuple(_case(entry, rates) for entry in document["cases"]))
    str(run.device), str(document["device"]["kind"]), int(document["rounds"]), float(document.get("load", 0))
    datetime.fromisoformat(document["date"]), dict(document.get("sources", {}))
    for name in rates:
        for value in document["rates"][name].get("measured", ()):
            _positive(value)
    return run


def read_run(option: str, path: Path) -> Run:
    """The run in a file.

    Args:
        option: what names the file, for the error.
        path: the file.

    Raises:
        DevtoolError: no such file, one that is cut short, or one of something else.
    """
    what = "a run that devtool bench --json wrote"
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        message = f"bench: {option}: expected {what}, got {error.strerror}: {path}"
        raise DevtoolError(message, f"devtool bench --json {path}") from error
    except ValueError as error:
        message = f"bench: {option}: expected {what}, got what is no whole JSON: {error} in {path}"
        raise DevtoolError(message, "it was cut short, or is another file: take one that is whole") from error
    try:
        return parse_run(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        got = f"another schema ({error})" if "schema " in str(error) else f"another document ({_text(error)})"
        message = f"bench: {option}: expected {what} (schema {SCHEMA}), got {got} in {path}"
        raise DevtoolError(message, f"devtool bench --json {path} writes one") from error


def write_run(path: Path, run: Run) -> None:
    """Writes the run, whole or not at all."""
    try:
        write_atomic(path, json.dumps(run.document, indent=1) + "\n")
    except OSError as error:
        raise error_from("bench", error) from error


def _case(entry: dict[str, Any], rates: dict[str, float]) -> Case:
    moved, done = _count(entry["bytes"]), _count(entry["operations"])
    needs = {"copy": moved / rates["copy"], "matrix": done / rates["matrix"]}
    bound = max(needs, key=needs.__getitem__)
    layers = tuple(_layer(layer) for layer in entry["layers"])
    control = tuple(_positive(value) for value in entry["control"])
    checked, refused = entry.get("checked", "nothing"), entry.get("refused")
    return Case(
        str(entry["op"]), str(entry["case"]), moved, done, needs[bound], bound, layers, control, checked, refused,
    )  # fmt: skip


def _layer(entry: dict[str, Any]) -> Layer:
    seconds = tuple(_positive(value) for value in entry.get("seconds", ()))
    skipped, refused = entry.get("skipped"), entry.get("refused")
    if not (seconds or skipped or refused):
        raise ValueError(f"layer {entry['name']} without samples")
    return Layer(str(entry["name"]), seconds, int(entry.get("calls", 1)), skipped, refused)


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value!r} where a positive number belongs")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} where a count belongs")
    return value


def _text(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
