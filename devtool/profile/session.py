"""Carries out `devtool profile`: profiles a call, reads the machine code or loads a profile; shows and saves it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from devtool import project
from devtool.building.build import Options, build_ops
from devtool.building.inventory import is_fresh
from devtool.building.variant import with_lines
from devtool.device import has_cuda_device
from devtool.errors import DevtoolError, unknown
from devtool.files import require_writable
from devtool.processes import how_it_ended, run_lines
from devtool.profile import ncu
from devtool.profile.advice import advice_of
from devtool.profile.compare import compare_profiles, print_changes
from devtool.profile.counters import kernel_of, read_raw
from devtool.profile.machine_code import described, for_device, with_machine_code
from devtool.profile.profile_file import SCHEMA, Profile, keep_profile, parse_profile, read_profile, write_profile
from devtool.profile.sass import kernels_of
from devtool.profile.source import annotated, read_instructions, read_lines
from devtool.profile.table import print_profile
from devtool.records.store import fingerprint

_CHILD = "pyxla.benchmark.one_call"


@dataclass(frozen=True)
class Selection:
    """What to profile.

    Attributes:
        op: an op or an implementation, or its folder.
        case: a bench or a case; None: the first.
        kernel: part of the names of the kernels to show; "": all.
        static: whether to read the machine code alone.
        as_built: whether to take the library in build/lib, which has no lines of the source.
    """

    op: str
    case: str | None = None
    kernel: str = ""
    static: bool = False
    as_built: bool = False

    @property
    def folder(self) -> str:
        """The op's folder."""
        return project.select_ops("profile", [project.folder_of(self.op)])[0]

    @property
    def name(self) -> str:
        """The name that pyxla knows: rms_norm.triton, also for the folder rms_norm_triton."""
        return project.op_of_folder(self.folder) if self.folder in project.implementations() else self.op


@dataclass(frozen=True)
class Files:
    """The files that the options name; None if an option is left out: to write, to compare with, to show."""

    json: Path | None = None
    compare: Path | None = None
    load: Path | None = None


def show_profile(selection: Selection | None, options: Options, files: Files) -> None:
    """Makes or loads a profile and does with it what the options ask.

    Args:
        selection: what to profile; None with `files.load`.
        options: how to build.
        files: what to read and write.

    Raises:
        DevtoolError: no such op, case or kernel, a file that cannot be read or written, a failed build or profile.
    """
    before = read_profile("--compare", files.compare) if files.compare else None
    if files.json:
        require_writable("profile: --json", files.json)
    profile = read_profile("--load", files.load) if files.load else _profile(selection, options)
    keep_profile(profile)
    if files.json:
        write_profile(files.json, profile)
    print_profile(profile)
    if before:
        print_changes(compare_profiles(before, profile), before)


def show_cases(selection: Selection) -> None:
    """Prints name and reason of each bench and case."""
    for entry in _child(selection, "--list"):
        click.echo(f"{entry['name']}\t{entry['why']}")


def _profile(selection: Selection, options: Options) -> Profile:
    missing = _missing(selection)
    document = _of_machine_code(selection, options) if missing else _of_call(selection, options)
    document["kernels"] = _selected(selection, document["kernels"])
    return parse_profile({"schema": SCHEMA, "sources": fingerprint(selection.folder), **document})


def _missing(selection: Selection) -> str | None:
    """Why there are no counters; None: there are."""
    what = "counters, stalls, source lines and dynamic shared memory"
    if selection.static:
        return f"{what}, as --static asks"
    if not has_cuda_device():
        return f"{what}: there is no GPU here"
    if ncu.find_ncu() is None:
        return f"{what}: there is no ncu on PATH or in the CUDA toolkit; install Nsight Compute"
    return None


def _of_machine_code(selection: Selection, options: Options) -> dict[str, Any]:
    if selection.case is not None:
        click.echo("profile: the machine code is the same for all cases: --case is left out", err=True)
    _library(selection.folder, options, selection.as_built)
    codes = for_device(kernels_of("profile", selection.folder), None)
    return {
        "op": selection.name,
        "case": None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": None,
        "architecture": codes[0].architecture,
        "seconds": [],
        "rates": {},
        "kernels": [described(code) for code in codes],
        "missing": [_missing(selection)],
    }


def _of_call(selection: Selection, options: Options) -> dict[str, Any]:
    library = _library(selection.folder, options if selection.as_built else _lined(options), selection.as_built)
    # Without the option the child takes the library in build/lib, and refuses a stale one.
    words = [] if selection.as_built else ["--library", str(library)]
    click.echo("profile: timing the call and the device", err=True)
    document = _child(selection, *words, *(["--case", selection.case] if selection.case else []))
    program, missing = ncu.find_ncu(), []
    click.echo(f"profile: {selection.name} {document['case']} under {program}", err=True)
    kernels = _under_ncu(program, selection, [*words, "--case", document["case"]])
    if not any(entry["file"] for kernel in kernels for entry in kernel["lines"]):
        missing.append("source lines: the library was built without them")
    try:
        codes = for_device(kernels_of("profile", selection.folder, library=library), document["device"]["capability"])
    except DevtoolError as error:
        reason, codes = error.message.partition("\n")[0], []
        missing.append(f"stack and mix of instructions: {reason.removeprefix('profile: ')}")
    if "bytes" not in document:
        missing.append("share of the device's rates: only a bench declares its bytes and operations")
    kernels = [with_machine_code(kernel, codes) for kernel in kernels]
    return document | {
        "kernels": [kernel | {"advice": advice_of(kernel)} for kernel in kernels],
        "architecture": f"sm_{document['device']['capability'].replace('.', '')}",
        "missing": missing,
    }


def _under_ncu(program: str, selection: Selection, words: Sequence[str]) -> list[dict[str, Any]]:
    """The kernels of a call: their counters and lines."""
    with tempfile.TemporaryDirectory(prefix="devtool-profile-") as name:
        report = Path(name, "call.ncu-rep")
        _answer(selection, ncu.record(program, _command(selection, "--in-range", *words), _environment(), report))
        raw = ncu.page(program, report, "--page", "raw", *ncu.SYMBOLS) if report.is_file() else ""
        kernels = [kernel_of(row) for row in read_raw(raw)]
        return [kernel | {"lines": _lines(program, report, number)} for number, kernel in enumerate(kernels)]


def _lines(program: str, report: Path, number: int) -> list[dict[str, Any]]:
    """The lines of a kernel, the one that ran as this number; its instructions if its library has no lines."""

    def page(source: str) -> str:
        only = ("--launch-skip", str(number), "--launch-count", "1")
        return ncu.page(program, report, "--page", "source", "--print-source", source, *only)

    return annotated(read_lines(page("cuda,sass")) or read_instructions(page("sass")))


def _selected(selection: Selection, kernels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [kernel for kernel in kernels if selection.kernel in kernel["name"]]
    if not found:
        known = list(dict.fromkeys(kernel["name"] for kernel in kernels))
        hint = f"devtool profile {selection.op} shows all"
        raise unknown("profile", "--kernel", "a part of the name of a kernel", selection.kernel, known, hint)
    return found


def _lined(options: Options) -> Options:
    return Options(options.cuda, variant=with_lines())


def _library(folder: str, options: Options, as_built: bool) -> Path:
    """The library of an op. One that is up to date needs no compiler here."""
    library = options.libraries / f"lib{folder}.so"
    if not as_built and not is_fresh(folder, library):
        build_ops([folder], options)
    return library


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}


def _command(selection: Selection, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", _CHILD, project.qualified(selection.name), *words]


def _child(selection: Selection, *words: str) -> Any:
    """What the child process prints."""
    lines: list[str] = []
    with tempfile.TemporaryFile("w+", prefix="devtool-profile-") as said:
        status = run_lines(_command(selection, *words), lines.append, _environment(), project.root(), said)
        if status:
            said.seek(0)
            click.echo(said.read(), err=True, nl=False)
            message = f"profile: {selection.name}: the process that makes the call {how_it_ended(status)}"
            raise DevtoolError(message, "read the message above; devtool test --raw checks the numbers")
    return _answer(selection, lines)


def _answer(selection: Selection, lines: Sequence[str]) -> Any:
    """The record that the child printed in its last line of JSON."""
    answer = None
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
        if isinstance(answer, dict | list):
            break
    else:
        message = f"profile: {selection.name}: expected a record of the call, got none"
        raise DevtoolError(message, "devtool test --raw makes the same calls")
    if "problem" in answer:
        raise DevtoolError(answer["problem"], answer["hint"] or "devtool doctor")
    if "unknown" in answer:
        what, hint = f"a bench or a case of {selection.name}", f"devtool profile {selection.name} --list"
        raise unknown("profile", "--case", what, answer["unknown"], answer["known"], hint)
    return answer
