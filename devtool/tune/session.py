"""Carries out `devtool tune`: builds the variants, times them, and writes the table or checks it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from devtool import project
from devtool.bench.process import Reader, run_measurement
from devtool.device import has_cuda_device
from devtool.errors import MISUSED, DevtoolError
from devtool.files import require_writable, write_atomic
from devtool.tune.builds import build_variants
from devtool.tune.choose import TABLE, Choice, choose, library_name
from devtool.tune.header import flags
from devtool.tune.record import (
    header_path,
    is_current,
    read_table,
    record_path,
    write_header,
    write_table,
)
from devtool.tune.space import Space, Table, read_space
from devtool.tune.table import print_choices, remarks


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        op: the op's folder.
        rounds: samples of each variant in each bench.
        noise: the smallest change that counts, as a fraction.
        json: where to save all samples and choices; None: nowhere.
    """

    op: str
    rounds: int
    noise: float
    json: Path | None


def write_start(op: str) -> None:
    """Writes the table with which the op's tuning.py starts, without measuring."""
    space = read_space(_selected(op))
    write_table(space, space.start, None, {})
    _echo_files(space)


def tune(request: Request) -> None:
    """Times all variants of an op and writes the table.

    Raises:
        DevtoolError: no such op, nothing declared, no device, a failed build or measurement, or wrong numbers.
    """
    space, table = _prepared(request)
    if not is_current(space, table):
        # What is built and timed as today's table is what the header says.
        write_header(space, table)
        click.echo(f"tune: wrote {header_path(space.op)}, which was not that of tuning.json", err=True)
    document, choices = _measured(request, space, table)
    chosen = table | {choice.shape: choice.values for choice in choices}
    about = {name: document[name] for name in ("date", "device", "versions", "rounds")} | {"noise": request.noise}
    write_table(space, chosen, about, {choice.shape: _found(space, choice) for choice in choices})
    _echo_files(space)
    if chosen != table:
        click.echo(f"hint: devtool test {space.op}", err=True)


def check(request: Request) -> None:
    """Times all variants of an op and compares them with the table.

    Raises:
        DevtoolError: as `tune`; tuning.h is not that of tuning.json; or another variant is faster beyond the noise.
    """
    space, table = _prepared(request)
    if not is_current(space, table):
        message = (
            f"tune: --check: expected {header_path(space.op)} with the table of tuning.json, got another file or none"
        )
        raise DevtoolError(message, f"devtool tune {space.op} writes both")
    _, choices = _measured(request, space, table)
    worse = []
    for choice in choices:
        if choice.is_changed:
            new = next(c for c in choice.candidates if c.values == choice.values)
            ratio = f"{new.ratio:.3f} ({new.low:.3f} to {new.high:.3f})"
            worse.append(f"{space.class_text(choice.shape)}: {space.text(new.values)} {ratio}")
    if worse:
        message = f"tune: --check: expected no variant faster than the table by more than {request.noise:.0%}, got "
        raise DevtoolError(message + "; ".join(worse), f"devtool tune {space.op} writes a new table")


def _prepared(request: Request) -> tuple[Space, Table]:
    if request.json:
        require_writable("tune: --json", request.json)
    space = read_space(_selected(request.op))
    if space.device == "cuda" and not has_cuda_device():
        message = f"tune: {space.op}: expected a CUDA device, as its parameters are those of CUDA code, got none"
        hint = f"run it on a machine with a GPU; devtool tune {space.op} --start writes a table without measuring"
        raise DevtoolError(message, hint)
    return space, read_table(space)


def _selected(op: str) -> str:
    (folder,) = project.select_ops("tune", [project.folder_of(op)])
    if folder in (of := project.implementations()):
        message = f"tune: OP: expected an op, got {folder}, an implementation of {of[folder]}"
        raise DevtoolError(message, f"devtool bench {folder} --against '-DkName=VALUE' times one value", MISUSED)
    return folder


def _measured(request: Request, space: Space, table: Table) -> tuple[dict[str, Any], list[Choice]]:
    wanted = {TABLE: ""} | {library_name(space, values): flags(space, values) for values in space.variants}
    libraries = build_variants(space.op, space.device, wanted)
    command = [sys.executable, "-P", "-m", "pyxla.benchmark.variants", project.qualified(space.op)]
    command += ["--device", space.device, "--rounds", str(request.rounds)]
    command += [word for name, path in libraries.items() for word in ("--library", f"{name}={path}")]
    reader = Reader()
    run_measurement("tune", command, reader, os.environ)
    if not reader.plan or reader.document is None:
        message = f"tune: {space.op}: expected a bench for {space.device} in kernels/{space.op}/cases.py, got none"
        raise DevtoolError(message, f"add to its BENCHES one for each class of shapes of kernels/{space.op}/tuning.py")
    document = reader.document
    for case in document["cases"]:
        if TABLE in case["refused"]:
            message = f"tune: {space.op}: expected right numbers in {case['case']}, got {case['refused'][TABLE]}"
            raise DevtoolError(message, f"devtool test {space.op}")
    choices = choose(space, table, document["cases"], request.noise)
    if request.json:
        found = [{"class": space.class_text(c.shape), **_found(space, c), **_all(space, c)} for c in choices]
        write_atomic(request.json, json.dumps({"op": space.op, **document, "choices": found}, indent=1) + "\n")
    print_choices(space, table, choices, document)
    for line in remarks(space, choices, document["cases"], request.noise):
        click.echo(line, err=True)
    return document, choices


def _found(space: Space, choice: Choice) -> dict[str, Any]:
    """What the record says of a class."""
    found: dict[str, Any] = {"benches": choice.benches, "microseconds": _rounded(choice.seconds * 1e6)}
    if choice.is_changed:
        found["before"] = space.named(choice.before)
    if other := choice.runner_up:
        interval = [_rounded(other.low), _rounded(other.high)]
        found["runner_up"] = {"values": space.named(other.values), "ratio": _rounded(other.ratio), "interval": interval}
    return found


def _all(space: Space, choice: Choice) -> dict[str, Any]:
    candidates = [
        {"values": space.named(c.values), "ratio": c.ratio, "interval": [c.low, c.high]} for c in choice.candidates
    ]
    return {"values": space.named(choice.values), "candidates": candidates}


def _rounded(value: float) -> float:
    """Four digits, which is more than a measurement repeats."""
    return float(f"{value:.4g}")


def _echo_files(space: Space) -> None:
    for path in (header_path(space.op), record_path(space.op)):
        click.echo(path)
