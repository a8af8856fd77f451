"""The JSON document of a `devtool bench` run, which pyxla/benchmark/run.py makes."""

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

# The same as pyxla.benchmark.run.SCHEMA; a test compares them.
SCHEMA = 1
# The layers that time pyxla itself; the others are baselines.
OURS = ("raw", "raw step", "xla step")


def is_ours(layer: str) -> bool:
    """Whether the layer is one of OURS, or one of an implementation: "triton raw"."""
    return layer in OURS or layer.endswith(tuple(f" {name}" for name in OURS))


@dataclass(frozen=True)
class Layer:
    """A layer of a bench.

    Attributes:
        name: "raw", "torch", ...
        seconds: the times of a call, one sample per round; empty if it was not timed.
        calls: the number of calls in a step.
        skipped: why it is not available.
        refused: what is wrong with its numbers, so that it was not timed.
    """

    name: str
    seconds: tuple[float, ...] = ()
    calls: int = 1
    skipped: str | None = None
    refused: str | None = None

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the interquartile range, relative to the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 2 / self.median


@dataclass(frozen=True)
class Case:
    """A bench of an op: its layers, and the least work and time of a call.

    Attributes:
        op, name: the names of the op and of the bench.
        bytes, operations: the fewest that a call must move and do.
        floor: the least seconds for these at the rates measured in the same run.
        bound: which of the two rates sets the floor: "copy" or "matrix".
        layers: in the order of the table.
        control: seconds of the reference run, a write that is the same in every run: it shows the machine's speed.
        checked: what was compared with the reference: "all", "nothing", or a sample.
        refused: what is wrong with the kernel's numbers, so that nothing was timed.
        against: the other library that was timed too; its layers have this name before theirs.
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
    against: str | None = None

    @property
    def lasting_layers(self) -> tuple[Layer, ...]:
        """Those that another run has too: without the other library's."""
        return tuple(la for la in self.layers if not (self.against and la.name.startswith(f"{self.against} ")))

    def layer(self, name: str) -> Layer | None:
        """The layer of this name, if it was timed."""
        return next((layer for layer in self.layers if layer.name == name and layer.seconds), None)

    def rate(self, seconds: float) -> float:
        """Bytes or operations per second, whichever bounds it, of a call that takes `seconds`."""
        return (self.bytes if self.bound == "copy" else self.operations) / seconds


@dataclass(frozen=True)
class Run:
    """A whole run.

    Attributes:
        document: the whole run, as in the file.
        cases: its benches.
    """

    document: dict[str, Any]
    cases: tuple[Case, ...]

    @property
    def device(self) -> str:
        """The device that it ran on, in words."""
        about = self.document["device"]
        more = f"{about['threads']} threads" if "threads" in about else about.get("driver", "")
        return f"{about['name']}, {more}" if more else about["name"]

    def rate(self, name: str) -> float:
        """The measured rate of the device: bytes per second ("copy") or operations per second ("matrix")."""
        return self.document["rates"][name]["per_second"]


def parse_run(document: Any) -> Run:
    """The run in a document. Raises KeyError, TypeError, ValueError or OverflowError if the document is not a run."""
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
        option: the option that names the file, for the error.
        path: the file.

    Raises:
        DevtoolError: there is no such file, it is truncated, or it is not a run.
    """
    what = "a run that devtool bench --json wrote"
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        message = f"bench: {option}: expected {what}, got {error.strerror}: {path}"
        raise DevtoolError(message, f"devtool bench --json {path}") from error
    except ValueError as error:
        message = f"bench: {option}: expected {what}, got invalid JSON: {error} in {path}"
        raise DevtoolError(message, "the file is truncated or is not a run: name a complete one") from error
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
    checked, refused, against = entry.get("checked", "nothing"), entry.get("refused"), entry.get("against")
    return Case(
        str(entry["op"]), str(entry["case"]), moved, done, needs[bound], bound, layers, control, checked, refused,
        None if against is None else str(against),
    )  # fmt: skip


def _layer(entry: dict[str, Any]) -> Layer:
    seconds = tuple(_positive(value) for value in entry.get("seconds", ()))
    skipped, refused = entry.get("skipped"), entry.get("refused")
    if not (seconds or skipped or refused):
        raise ValueError(f"layer {entry['name']} without samples")
    return Layer(str(entry["name"]), seconds, int(entry.get("calls", 1)), skipped, refused)


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value!r} instead of a positive number")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} instead of a count")
    return value


def _text(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
