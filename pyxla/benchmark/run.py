"""One run: the device's own rates, then each bench, with its layers timed in turns."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from pyxla.benchmark import Arguments, Bench
from pyxla.benchmark import Step as WholeStep
from pyxla.benchmark.check import Expected
from pyxla.benchmark.layers import Raw, Single, Skipped, Step, step_calls, warm_up
from pyxla.benchmark.peers import peer_layer, peer_names
from pyxla.benchmark.xla_step import NAME as XLA
from pyxla.benchmark.xla_step import xla_step
from pyxla.errors import ArgumentError, LibraryError, PyxlaError
from pyxla.library.find import Library
from pyxla.torch_ops.custom_op import CustomOp
from pyxla.torch_ops.implementation import Implementation

# The version of the document of a run. When it changes, the code that reads a document must change too.
SCHEMA = 1
LAYERS = ("raw", "xla", "peers")
_RATE_ROUNDS = 10

# The number of rates that are measured.
RATES = 2

Tell = Callable[[str], None]
Rates = dict[str, dict[str, Any]]


def steps_of(bench: Bench, layers: Sequence[str], rounds: int, implementations: int = 0, against: bool = False) -> int:
    """How often `measure` calls `tell`, for a progress bar."""
    return 1 + _prepared(bench, layers, implementations, against) + rounds


def _prepared(bench: Bench, layers: Sequence[str], implementations: int, against: bool) -> int:
    own = (("raw" in layers) + ("xla" in layers)) * (1 + implementations)
    return own + ("raw" in layers and against) + (len(peer_names(bench)) if "peers" in layers else 0)


def environment(device: Any) -> dict[str, Any]:
    """The circumstances of a run's figures: date, device, versions, and the load of the machine."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("pyxla", "torch_xla", "flashinfer-python"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device.about,
        "versions": versions,
        "load": os.getloadavg()[0] / len(os.sched_getaffinity(0)),
        "cold": device.cold,
    }


def rates(device: Any, tell: Tell, before: Rates | None = None) -> Rates:
    """The device's rates: bytes per second of a large copy, operations per second of a matrix product.

    Args:
        device: HostDevice or one of cuda.py.
        tell: as for `measure`, called RATES times.
        before: the result of an earlier call. Rates are measured before and after all benches; the higher one counts.
    """
    found: Rates = {}
    for name, make in (("copy", device.copy_rate), ("matrix", device.matrix_rate)):
        tell(f"{name} rate")
        call, amount, what = make()
        times = [device.seconds(call, cold=False) for _ in range(3 + _RATE_ROUNDS)][3:]
        measured = [*(before[name]["measured"] if before else ()), amount / statistics.median(times)]
        found[name] = {"per_second": max(measured), "measured": measured, "what": what}
        # The next rate needs the memory.
        del call
        gc.collect()
    return found


def measure(
    op: CustomOp,
    bench: Bench,
    device: Any,
    *,
    layers: Sequence[str],
    rounds: int,
    tell: Tell,
    implementations: Sequence[Implementation] = (),
    against: tuple[str, Library] | None = None,
) -> dict[str, Any]:
    """Checks one bench and times its layers in turns; a layer of pyxla's with wrong numbers is refused.

    Args:
        op, bench: the op and its bench.
        device: HostDevice or one of cuda.py.
        layers: those of LAYERS to time. The raw call is always checked.
        rounds: samples of each layer.
        tell: called with what is done next, `steps_of` times.
        implementations: implementations of the op whose layers are timed too: "triton raw" next to "raw".
        against: a name and another library of the op, whose raw layers are timed too: "HEAD raw" next to "raw".

    Returns:
        The record of the bench, ready for JSON.
    """
    tell("input and reference")
    torch._dynamo.reset()
    arguments = bench.arguments()
    record = new_record(op, bench, arguments)
    try:
        expected = Expected(op, bench, arguments, device.peers)
        record["checked"] = expected.extent
        raw = Raw(op, arguments, device, expected)
        record["error"] = raw.error
    except LibraryError:
        raise
    except (AssertionError, PyxlaError) as error:
        for number in range(_prepared(bench, layers, len(implementations), against is not None) + rounds):
            tell("refused" if number else "wrong numbers: refused")
        return record | {"refused": first_line(error)}
    made = list(_own_layers(op, arguments, device, expected, raw, layers, tell))
    pairs = {}
    if against and "raw" in layers:
        pairs = _other_layers(op, arguments, device, expected, against, made, tell)
        made = [layer for own in made for layer in (own, *pairs.get(own.name, ()))]
    for implementation in implementations:
        made += _implementation_layers(implementation, arguments, device, expected, layers, tell)
    made += _peer_layers(op, bench, arguments, device, expected, layers, tell)
    timed = [layer for layer in made if isinstance(layer, Single | Step)]
    for layer in timed:
        warm_up(layer)
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        record["control"].append(device.seconds(device.write_other_data, cold=False))
        for layer in in_turns(timed, pairs, number):
            layer.measure()
    record["layers"] = [layer_record(layer) for layer in made]
    return record


def _own_layers(
    op: CustomOp, arguments: Arguments, device: Any, expected: Expected, raw: Raw, layers: Sequence[str], tell: Tell
) -> Iterable[Single | Step | Skipped | dict]:
    single = raw.single()
    calls = step_calls(op, arguments, raw.results, warm_up(single), device)
    if "raw" in layers:
        tell("raw")
        yield single
        yield raw.step(calls)
    if "xla" in layers:
        tell(f"{XLA}: compiles")
        try:
            yield xla_step(op, arguments, raw.chained, calls, expected)
        except (AssertionError, PyxlaError) as error:
            yield {"name": XLA, "refused": first_line(error)}


def _implementation_layers(
    implementation: Implementation,
    arguments: Arguments,
    device: Any,
    expected: Expected,
    layers: Sequence[str],
    tell: Tell,
) -> Iterable[Single | Step | Skipped | dict]:
    """The layers of an implementation, with its name before theirs, after its numbers were compared."""
    name = implementation.name.partition(".")[2]
    try:
        raw = Raw(implementation, arguments, device, expected)
    except LibraryError:
        raise
    except (AssertionError, PyxlaError) as error:
        for layer in sorted({"raw", "xla"} & set(layers)):
            tell(f"{name} {layer}: not timed")
        # It is no error that the implementation does not take these arguments.
        why = "skipped" if isinstance(error, ArgumentError) else "refused"
        yield {"name": f"{name} raw", why: first_line(error)}
        return
    for layer in _own_layers(implementation, arguments, device, expected, raw, layers, lambda t: tell(f"{name} {t}")):
        if isinstance(layer, dict):
            yield layer | {"name": f"{name} {layer['name']}"}
        else:
            yield replace(layer, name=f"{name} {layer.name}")


def _other_layers(
    op: CustomOp,
    arguments: Arguments,
    device: Any,
    expected: Expected,
    against: tuple[str, Library],
    made: Sequence[Single | Step | Skipped | dict],
    tell: Tell,
) -> dict[str, list[Single | Step | Skipped]]:
    """Layer of the op -> the same of another library, after its numbers were compared; steps of as many calls."""
    name, library = against
    tell(f"{name} raw")
    try:
        raw = Raw(op, arguments, device, expected, library)
    except (AssertionError, PyxlaError) as error:
        # It may have had other arguments then.
        return {"raw": [Skipped(f"{name} raw", first_line(error))]}
    steps = {
        layer.name: raw.step(layer.calls) for layer in made if isinstance(layer, Step) and layer.name == "raw step"
    }
    found = {"raw": raw.single()} | steps
    return {layer: [replace(other, name=f"{name} {layer}")] for layer, other in found.items()}


def in_turns(timed: Sequence[Single | Step], pairs: dict[str, list], number: int) -> Iterable[Single | Step]:
    """The layers of a round. Those of a pair change places each time, as what comes before a layer changes its time."""
    left = list(timed)
    while left:
        layer = left.pop(0)
        others = [other for other in pairs.get(layer.name, ()) if other in left]
        for other in others:
            left.remove(other)
        yield from [layer, *others] if number % 2 else [*others, layer]


def _peer_layers(
    op: CustomOp,
    bench: Bench,
    arguments: Arguments,
    device: Any,
    expected: Expected,
    layers: Sequence[str],
    tell: Tell,
) -> Iterable[Single | Skipped]:
    if "peers" in layers:
        for name in peer_names(bench):
            tell(name)
            yield peer_layer(op, bench, name, arguments, device, expected)


def first_line(error: Exception) -> str:
    """The first line of a message."""
    return str(error).strip().partition("\n")[0]


def new_record(op: CustomOp, bench: Bench | WholeStep, arguments: Arguments) -> dict[str, Any]:
    """What the document says about a bench before it is timed."""
    return {
        "op": op.name,
        "case": bench.name,
        "why": bench.why,
        "bytes": int(bench.bytes(arguments)),
        "operations": int(bench.operations(arguments)),
        "layers": [],
        # The reference run: the same write in every run shows how fast the machine was.
        "control": [],
    }


def layer_record(layer: Single | Step | Skipped | dict) -> dict[str, Any]:
    """A layer as it is in the document."""
    if isinstance(layer, dict):
        return layer
    if isinstance(layer, Skipped):
        return {"name": layer.name, "skipped": layer.reason}
    return {
        "name": layer.name,
        "how": layer.how,
        "caches": layer.caches,
        "calls": layer.calls,
        "seconds": layer.samples(),
    }
