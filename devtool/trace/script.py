"""Runs a user's script as `python script.py` would, and makes torch, torch_xla and XLA record what they do."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from devtool.errors import FAILED, INTERRUPTED, MISUSED, DevtoolError
from devtool.files import require_writable, write_atomic
from devtool.hlo.xla_flags import dumping
from devtool.processes import how_it_ended, run_through


def trace_script(
    script: str, arguments: Sequence[str], json_file: str | None, *, ir: bool, metrics: bool, op_seconds: float
) -> int:
    """Runs the script, prints the report on stderr and returns the script's exit status.

    Args:
        script: path of a Python file.
        arguments: its arguments.
        json_file: where the report goes as JSON; "-" is stdout.
        ir: show the IR of each graph.
        metrics: show torch_xla's counters and metrics.
        op_seconds: record the time per op for this many seconds of computation.

    Raises:
        DevtoolError: there is no such script, it was killed or did nothing on XLA, or the JSON cannot be written.
    """
    _require(script, json_file)
    with tempfile.TemporaryDirectory(prefix="devtool-trace-") as folder:
        environment, places = _environment(Path(folder), ir=ir, op_seconds=op_seconds)
        since = time.time()
        try:
            status = run_through([sys.executable, script, *arguments], Path.cwd(), environment)
        except KeyboardInterrupt:
            status = INTERRUPTED
        report = _report(places, since)
    killed = signal.Signals(-status).name if status < 0 else None
    report = {"script": script, "exit_status": status if status >= 0 else None, "signal": killed} | report
    if report["graphs"]:
        _show(report, json_file, metrics=metrics)
    exit_code = 128 - status if status < 0 else status
    if killed:
        message = f"trace: {script}: the script {how_it_ended(status)}"
        seen = "the report shows what happened before that" if report["graphs"] else "nothing had run on XLA by then"
        raise DevtoolError(message, seen, exit_code)
    if not report["graphs"]:
        message = f"trace: {script}: expected a computation on XLA, got none"
        raise DevtoolError(message, "tensors are XLA's if they are on device=torch_xla.device()", exit_code or FAILED)
    return exit_code


def _require(script: str, json_file: str | None) -> None:
    if not Path(script).is_file():
        got = "a folder at" if Path(script).is_dir() else "none at"
        message = f"trace: SCRIPT: expected a Python file, got {got} {script}"
        raise DevtoolError(message, "devtool trace [OPTIONS] SCRIPT [ARGS]", MISUSED)
    if json_file not in (None, "-"):
        require_writable("trace: --json", Path(json_file))


def _environment(folder: Path, *, ir: bool, op_seconds: float) -> tuple[dict[str, str], dict[str, Path]]:
    """The script's environment, and the paths that it makes torch and XLA write to: the user's own, if they are set."""
    flags, modules = dumping(os.environ.get("XLA_FLAGS", ""), folder / "modules")
    places = {
        "records": folder,
        "graphs": folder / "graphs",
        "modules": modules,
        "dynamo": Path(os.environ.get("TORCH_TRACE") or folder / "dynamo"),
        "ir": folder / "ir",
    }
    environment = {
        **os.environ,
        "PYXLA_TRACE": str(folder),
        "PYXLA_TRACE_OP_SECONDS": str(op_seconds),
        # Why each graph was compiled and run, with the Python frames: torch_xla/csrc/debug_util.
        "PT_XLA_DEBUG_LEVEL": "2",
        "PT_XLA_DEBUG_FILE": str(places["graphs"]),
        "PT_XLA_DEBUG_MAX_FRAME": "100",
        # The source line of each instruction.
        "XLA_IR_DEBUG": "1",
        "XLA_HLO_DEBUG": "1",
        # Keep every sample, so that each can be assigned to its graph.
        "XLA_METRICS_SAMPLES": "65536",
        "XLA_FLAGS": flags,
        "TORCH_TRACE": str(places["dynamo"]),
    }
    if ir:
        environment |= {"XLA_SAVE_TENSORS_FILE": str(places["ir"]), "XLA_SAVE_TENSORS_FMT": "text"}
    return environment, places


def _report(places: dict[str, Path], since: float) -> dict[str, Any]:
    if not places["graphs"].is_file():
        return {"graphs": []}
    from pyxla.trace import report
    from pyxla.trace.advice import advice

    files = report.Files(**places, since=since)
    trace = report.read(files)
    summary = report.summary(trace, files)
    return summary | {"advice": advice(trace, summary)}


def _show(report: dict[str, Any], json_file: str | None, *, metrics: bool) -> None:
    from devtool.trace.table import print_report

    print_report(report, metrics=metrics)
    if json_file == "-":
        click.echo(json.dumps(report, indent=1))
    elif json_file:
        write_atomic(Path(json_file), json.dumps(report, indent=1) + "\n")
