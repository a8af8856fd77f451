"""Builds ops and has pyxla measure them in a separate process with preloaded libraries; shows the progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from devtool import project
from devtool.bench.process import Reader, run_measurement
from devtool.building.build import Options, build_ops
from devtool.building.preload import preloading
from devtool.building.variant import require_ops, variant_of
from devtool.device import pick_device
from devtool.errors import MISUSED, DevtoolError
from devtool.records.run_file import Run, parse_run
from devtool.records.store import fingerprint


@dataclass(frozen=True)
class Selection:
    """What to measure.

    Attributes:
        ops: folders of ops, or of implementations, each timed along with its op; none: all of them.
        cases: names of benches; none: all of them.
        layers: "raw", "xla", "peers"; none: all of them.
        device: "auto", "cpu", "cuda".
        rounds: samples of each layer.
        against: a git revision, or options of the compilers, whose libraries are timed too; None: none.
    """

    ops: Sequence[str]
    cases: Sequence[str] = ()
    layers: Sequence[str] = ()
    device: str = "auto"
    rounds: int = 50
    against: str | None = None


def measure(selection: Selection, options: Options, on_device: Callable[[dict], None] = lambda about: None) -> Run:
    """Builds the ops and measures their benches; reports on stderr.

    Args:
        selection: what to measure.
        options: how to build.
        on_device: called with the device before anything is timed; it may raise.

    Raises:
        DevtoolError: no such op, bench or device, a failed build, or a measuring process that failed.
    """
    reader = Reader(on_device)
    sources = {folder: fingerprint(folder) for folder in _folders(selection)}
    _measure(selection, options, reader, [])
    if not reader.plan:
        _no_benches(selection)
    if reader.document is None:
        raise DevtoolError("bench: measurement: expected a run, got none", "read the output above")
    measured = {case["op"] for case in reader.document["cases"]}
    of = project.implementations()
    reader.document["sources"] = {f: digest for f, digest in sources.items() if of.get(f, f) in measured}
    return parse_run(reader.document)


def list_benches(selection: Selection) -> list[dict[str, Any]]:
    """Op, name and reason of each bench, and the other ops that it calls."""
    reader = Reader(lambda about: None)
    _measure(selection, None, reader, ["--list"])
    return reader.plan


def refused(run: Run) -> list[str]:
    """A line for each layer that was not timed because its numbers are wrong."""
    lines = []
    for case in run.cases:
        found = [("raw", case.refused)] if case.refused else [(la.name, la.refused) for la in case.layers if la.refused]
        lines += [f"bench: {case.op} {case.name}: {name}: {text}" for name, text in found]
    return lines


def require_right_numbers(run: Run) -> None:
    """Prints on stderr the layers that were not timed because of wrong numbers; raises DevtoolError if any."""
    lines = refused(run)
    for line in lines:
        click.echo(line, err=True)
    if lines:
        ops = " ".join(dict.fromkeys(line.split()[1] for line in lines))
        message = f"bench: wrong numbers in {len(lines)} layers, which were not timed (see above)"
        raise DevtoolError(message, f"devtool test {ops}")


def _measure(selection: Selection, options: Options | None, reader: Reader, extra: Sequence[str]) -> None:
    ops = project.select_ops("bench", _in_folders(selection.ops))
    device = pick_device("bench", selection.device)
    libraries = []
    if options is not None:
        extra = [*extra, *_build_other(selection, ops, options)]
        libraries = build_ops(list(dict.fromkeys([*_folders(selection), *_called_by_steps(selection)])), options)
    command = [sys.executable, "-P", "-m", "pyxla.benchmark", *map(project.qualified, ops), "--device", device]
    command += ["--rounds", str(selection.rounds), *extra]
    command += [word for name in selection.cases for word in ("--case", name)]
    command += [word for name in selection.layers for word in ("--layer", name)]
    with preloading(libraries) as preload:
        run_measurement("bench", command, reader, os.environ | {"LD_PRELOAD": preload})


def _in_folders(ops: Sequence[str]) -> list[str]:
    """The folders of ops, which may be named like folders: paged_attention for paged_attention_lse."""
    return list(dict.fromkeys(map(project.folder_of, ops)))


def _build_other(selection: Selection, ops: Sequence[str], options: Options) -> list[str]:
    """Builds what the ops are timed against; returns the options of the measuring process."""
    if selection.against is None:
        return []
    variant = variant_of("bench: --against", selection.against)
    of = project.implementations()
    ops = list(dict.fromkeys(of.get(op, op) for op in ops))
    require_ops("bench: --against", variant, ops)
    click.echo(f"build: {variant.name}", err=True)
    other = replace(options, variant=variant)
    build_ops(ops, other)
    return [f"--against={other.libraries}", f"--against-name={variant.name}"]


def _folders(selection: Selection) -> list[str]:
    """The folders of the ops that are timed, and of their implementations: all of a named op's, or the named ones."""
    named, of = project.select_ops("bench", _in_folders(selection.ops)), project.implementations()
    return list(dict.fromkeys([*(of.get(folder, folder) for folder in named), *project.with_implementations(named)]))


def _called_by_steps(selection: Selection) -> list[str]:
    """The folders of the ops that the steps to be timed call, as far as they are this repository's."""
    files = [project.kernels() / folder / "cases.py" for folder in _folders(selection)]
    # To list them takes seconds, and few ops have steps.
    if "xla" not in (selection.layers or ["xla"]) or not any(f.is_file() and "STEPS" in f.read_text() for f in files):
        return []
    timed = [entry for entry in list_benches(selection) if not selection.cases or entry["case"] in selection.cases]
    known = project.op_names()
    return [op for entry in timed for op in entry["ops"] if op in known]


def _no_benches(selection: Selection) -> None:
    ops = ", ".join(f"kernels/{op}/cases.py" for op in selection.ops) or "any cases.py of kernels/"
    message = f"bench: BENCHES: expected a bench for this device in {ops}, got none"
    raise DevtoolError(message, "BENCHES in kernels/rms_norm/cases.py is an example", MISUSED)
