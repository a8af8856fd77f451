"""Builds ops and fuzzes each in a process of its own; finds a crash again and makes it small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from devtool import project
from devtool.building.build import Options, build_ops, for_cpu
from devtool.building.preload import preloading
from devtool.device import pick_device
from devtool.errors import DevtoolError, unknown
from devtool.processes import how_it_ended, run_through
from devtool.testing.run import sanitizer_environment, under_gpu_sanitizer

HOST_SANITIZERS = "address,undefined"
# Of what a process said that ended by itself.
_LINES = 40
# Characters of a case that is printed.
_MOST_CODE = 4000


@dataclass(frozen=True)
class Limits:
    """When an op is done: after so many calls or seconds, whichever comes first; None: no limit."""

    calls: int | None
    seconds: float | None


def fuzz(names: Sequence[str], limits: Limits, device: str, seed: int, *, processes: int, sanitize: bool) -> bool:
    """Fuzzes ops one after the other and prints what came of each; returns whether all was right.

    Args:
        names: folders, each with its ops and their implementations, or ops; none means all of them.
        limits: of each op.
        device: "cpu", "cuda" or "auto".
        seed: of all choices.
        processes: how many share an op's calls.
        sanitize: on the CPU build the ops with sanitizers; on CUDA run under compute-sanitizer.

    Raises:
        DevtoolError: no such op or device, a failed build, no sanitizer.
    """
    device = pick_device("fuzz", device)
    folders = project.with_implementations(project.select_ops("fuzz", list(map(project.folder_of, names))))
    host = HOST_SANITIZERS if sanitize and device == "cpu" else None
    before = under_gpu_sanitizer("fuzz", "memcheck") if sanitize and device == "cuda" else []
    options = Options(sanitize=host)
    libraries = build_ops(folders, for_cpu(options) if device == "cpu" else options)
    environment = {**os.environ, **sanitizer_environment(host), "PJRT_DEVICE": device.upper()}
    right = True
    with preloading(libraries, host) as environment["LD_PRELOAD"]:
        for op in _named(names, _ops_of(folders, environment)):
            right &= _fuzz_op(op, limits, device, seed, processes, before, environment)
    return right


def _named(names: Sequence[str], ops_of: dict[str, list[str]]) -> list[str]:
    """The ops to call: those of a folder and its implementations, or the one that is named.

    Raises:
        DevtoolError: there is no such op in the folder whose Python file has a function of this name.
    """
    known = [op for ops in ops_of.values() for op in ops]
    chosen = [] if names else [*known]
    for name in names:
        if name in ops_of:
            chosen += [op for folder in project.with_implementations([name]) for op in ops_of[folder]]
        elif name in known:
            chosen.append(name)
        else:
            raise unknown("fuzz", "OP", "an op", name, known, "devtool list")
    return list(dict.fromkeys(chosen))


def _ops_of(folders: Sequence[str], environment: dict[str, str]) -> dict[str, list[str]]:
    """The ops of each of these folders, by the names that `pyxla.find_op` knows."""
    namespace = project.repository().namespace
    code = "import json, sys, pyxla.torch_ops.custom_op as ops\nfolders, namespace = json.loads(sys.argv[1])\n"
    code += "print(json.dumps({f: [op.display_name for op in ops.ops_of_library(f, namespace)] for f in folders}))"
    command = [sys.executable, "-c", code, json.dumps([list(folders), namespace])]
    done = subprocess.run(command, cwd=project.root(), env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise DevtoolError("fuzz: ops: expected kernels that can be imported, got an error (see above)", "devtool test")
    return json.loads(done.stdout.splitlines()[-1])


def _fuzz_op(
    op: str, limits: Limits, device: str, seed: int, processes: int, before: list[str], environment: dict[str, str]
) -> bool:
    kept = project.root() / "build/fuzz"
    with tempfile.TemporaryDirectory(prefix="devtool-fuzz-") as folder:
        # pyxla.fuzz.__main__.Job has the fields' meaning.
        common = {"op": op, "platform": "Host" if device == "cpu" else "CUDA", "seed": seed, "rounds": None}
        common |= {"seconds": limits.seconds, "isolated": False, "folder": folder, "kept": str(kept)}
        jobs = [
            common | {"first": first, "step": processes, "calls": calls}
            for first, calls in _shares(limits.calls, processes)
        ]
        with ThreadPoolExecutor(processes) as threads:
            try:
                ends = list(threads.map(lambda job: _run(job, before, environment), jobs))
            except BaseException:
                _end_all(common)
                _echo_counts(op, seed, [state for job in jobs if (state := _read(job, f"state-{job['first']}"))])
                raise
        states = [_read(job, f"state-{job['first']}") for job in jobs]
        found = _read(common, "found")
        for (status, errors), state in zip(ends, states, strict=True):
            if state is None:
                click.echo(errors, err=True)
                raise DevtoolError(f"fuzz: {op}: the process {how_it_ended(status)} before the first call", "see above")
            if status and not found:
                found = _input_of_crash(common, status, errors, state["round"], environment)
    _echo_counts(op, seed, states)
    if found:
        _echo_found(op, found, kept)
    return not found


def _echo_found(op: str, found: dict[str, Any], kept: Path) -> None:
    """Prints what is wrong and the case; a long one goes to a file in the folder `kept`."""
    click.echo(f"{op}: {found['kind']}: {found['problem']}")
    if len(found["code"]) > _MOST_CODE:
        kept.mkdir(parents=True, exist_ok=True)
        path = kept / f"{op}.case.py"
        path.write_text(found["code"] + "\n")
        click.echo(f"{op}: the case: {path}")
    elif found["code"]:
        click.echo(found["code"])


def _echo_counts(op: str, seed: int, states: Sequence[dict[str, Any]]) -> None:
    """Says how many calls the processes have made, and what came of them."""
    counts = sum((Counter(state["counts"]) for state in states), Counter())
    seconds = max((state["seconds"] for state in states), default=0)
    rate = f"{counts.total() / seconds:.0f} calls/s" if seconds else "no time"
    each = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    click.echo(f"{op}: {counts.total()} calls in {seconds:.0f} s, {rate}, seed {seed}: {each}")


def _shares(calls: int | None, processes: int) -> list[tuple[int, int | None]]:
    """The first round of each process, and its calls; a process without calls is left out."""
    shares = [None if calls is None else calls // processes + (first < calls % processes) for first in range(processes)]
    return [(first, share) for first, share in enumerate(shares) if share != 0]


def _input_of_crash(
    common: dict[str, Any], status: int, errors: str, number: int, environment: dict[str, str]
) -> dict[str, Any]:
    """What a process found that ended by itself in a round: the input, if it is to be had."""
    kind = f"the process {how_it_ended(status)}"
    # A GPU's context does not survive the fork that isolates an input.
    if common["platform"] == "Host":
        click.echo(f"{common['op']}: {kind} in round {number}; looking for the input")
        Path(common["folder"], "over").unlink(missing_ok=True)
        _run(common | {"first": number, "step": 1, "rounds": 1, "calls": None, "isolated": True}, [], environment)
    return _read(common, "found") or {"kind": kind, "problem": errors, "code": ""}


def _run(job: dict[str, Any], before: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Does a job; returns the exit status and the end of what the process said."""
    path = Path(job["folder"], f"job-{job['first']}")
    path.write_text(json.dumps(job))
    command = [*before, sys.executable, "-m", "pyxla.fuzz", str(path)]
    with path.with_suffix(".errors").open("w+") as errors:
        status = run_through(command, project.root(), environment, stderr=errors)
        if status:
            _end_all(job)
        errors.seek(0)
        return status, "".join(errors.readlines()[-_LINES:])


def _end_all(job: dict[str, Any]) -> None:
    """Makes the processes of the job's folder end after their next call."""
    Path(job["folder"], "over").touch()


def _read(job: dict[str, Any], name: str) -> dict[str, Any] | None:
    path = Path(job["folder"], name)
    return json.loads(path.read_text()) if path.is_file() else None
