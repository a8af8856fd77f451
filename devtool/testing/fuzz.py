"""Builds ops and fuzzes each in a process of its own; finds a crash again and makes it small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from devtool import project
from devtool.building.build import Options, build_ops, for_cpu
from devtool.building.preload import preloading
from devtool.device import pick_device
from devtool.errors import DevtoolError
from devtool.processes import how_it_ended, run_through
from devtool.testing.run import sanitizer_environment, under_gpu_sanitizer

HOST_SANITIZERS = "address,undefined"
# Of what a process said that ended by itself.
_LINES = 40


@dataclass(frozen=True)
class Limits:
    """When an op is done: after so many calls or seconds, whichever comes first; None: no limit."""

    calls: int | None
    seconds: float | None


def fuzz(names: Sequence[str], limits: Limits, device: str, seed: int, *, sanitize: bool) -> bool:
    """Fuzzes ops one after the other and prints what came of each; returns whether all was right.

    Args:
        names: ops, each with its implementations; none means all of them.
        limits: of each op.
        device: "cpu", "cuda" or "auto".
        seed: of all choices.
        sanitize: on the CPU build the ops with sanitizers; on CUDA run under compute-sanitizer.

    Raises:
        DevtoolError: no such op or device, a failed build, no sanitizer.
    """
    device = pick_device("fuzz", device)
    folders = project.with_implementations(project.select_ops("fuzz", names))
    host = HOST_SANITIZERS if sanitize and device == "cpu" else None
    before = under_gpu_sanitizer("fuzz", "memcheck") if sanitize and device == "cuda" else []
    options = Options(sanitize=host)
    libraries = build_ops(folders, for_cpu(options) if device == "cpu" else options)
    environment = {**os.environ, **sanitizer_environment(host), "PJRT_DEVICE": device.upper()}
    right = True
    with preloading(libraries, host) as environment["LD_PRELOAD"]:
        for op in _ops_of(folders, environment):
            right &= _fuzz_op(op, limits, device, seed, before, environment)
    return right


def _ops_of(folders: Sequence[str], environment: dict[str, str]) -> list[str]:
    """The ops of these folders, by the names that `pyxla.find_op` knows."""
    namespace = project.repository().namespace
    code = "import json, sys, pyxla.torch_ops.custom_op as ops\nfolders, namespace = json.loads(sys.argv[1])\n"
    code += "print(json.dumps([op.display_name for f in folders for op in ops.ops_of_library(f, namespace)]))"
    command = [sys.executable, "-c", code, json.dumps([list(folders), namespace])]
    done = subprocess.run(command, cwd=project.root(), env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise DevtoolError("fuzz: ops: expected kernels that can be imported, got an error (see above)", "devtool test")
    return json.loads(done.stdout.splitlines()[-1])


def _fuzz_op(op: str, limits: Limits, device: str, seed: int, before: list[str], environment: dict[str, str]) -> bool:
    kept = project.root() / "build/fuzz"
    with tempfile.TemporaryDirectory(prefix="devtool-fuzz-") as folder:
        platform = "Host" if device == "cpu" else "CUDA"
        # pyxla.fuzz.__main__.Job has the fields' meaning.
        job = {"op": op, "platform": platform, "seed": seed, "first": 0, "rounds": None, "calls": limits.calls}
        job |= {"seconds": limits.seconds, "isolated": False, "folder": folder, "kept": str(kept)}
        status, errors = _run(job, before, environment)
        state, found = _read(job, "state"), _read(job, "found")
        if state is None:
            click.echo(errors, err=True)
            raise DevtoolError(f"fuzz: {op}: the process {how_it_ended(status)} before the first call", "see above")
        if status and not found:
            found = {"kind": f"the process {how_it_ended(status)}", "problem": errors, "code": ""}
            # A GPU's context does not survive the fork that isolates an input.
            if platform == "Host":
                click.echo(f"{op}: {found['kind']} in round {state['round']}; looking for the input")
                _run(job | {"first": state["round"], "rounds": 1, "isolated": True}, [], environment)
                found = _read(job, "found") or found
    counts, seconds = Counter(state["counts"]), state["seconds"]
    rate = f"{counts.total() / seconds:.0f} calls/s" if seconds else "no time"
    each = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    click.echo(f"{op}: {counts.total()} calls in {seconds:.0f} s, {rate}, seed {seed}: {each}")
    if found:
        click.echo("\n".join(filter(None, [f"{op}: {found['kind']}: {found['problem']}", found["code"]])))
    return not found


def _run(job: dict[str, Any], before: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Does a job; returns the exit status and the end of what the process said."""
    path = Path(job["folder"], "job")
    path.write_text(json.dumps(job))
    command = [*before, sys.executable, "-m", "pyxla.fuzz", str(path)]
    with Path(job["folder"], "errors").open("w+") as errors:
        status = run_through(command, project.root(), environment, stderr=errors)
        errors.seek(0)
        return status, "".join(errors.readlines()[-_LINES:])


def _read(job: dict[str, Any], name: str) -> dict[str, Any] | None:
    path = Path(job["folder"], name)
    return json.loads(path.read_text()) if path.is_file() else None
