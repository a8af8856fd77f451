"""The checks of `devtool doctor`: each prints a line that says ok, or what is wrong and what fixes it.

Doctor must finish where anything may be broken. So it imports neither torch nor pyxla: code that may raise, crash or
hang runs in a separate process (devtool/doctor/probes.py), and a check that raises gives a line like any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from devtool import project
from devtool.building.tools import compiler, find_nvcc
from devtool.doctor.processes import Processes
from devtool.doctor.python import Problem, dotted, install_command, python, read_locks, version_of, wheel_set, wheels
from devtool.errors import DevtoolError

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
NOT_BUILT = "not built yet"
NO_GPU = "no GPU here, PJRT_DEVICE=CPU works"
_CUDA_WHEELS = "PYXLA_SET=cuda13 bin/devtool"
_ANEW = "truncate -s 0 .venv/stamp; bin/devtool  # rebuilds .venv"


@dataclass(frozen=True)
class Line:
    """One check: its name; "ok", "failed" or "skipped"; what it found; and the fix, if it failed."""

    check: str
    status: str
    found: str
    hint: str = ""


class Skip(Exception):
    """Why a check cannot run."""


class Doctor:
    """The checks, in order.

    Args:
        timeout: the most seconds that each process may take.

    Attributes:
        lines: the lines, by the name of the check.
    """

    def __init__(self, timeout: float = 120):
        self._processes = Processes(timeout)
        self.lines: dict[str, Line] = {}
        self._has_gpu = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
        self._called: dict[str, Any] | None = None
        self._plugin: dict[str, Any] = {}
        self._gpus: list[tuple[str, tuple[int, int]]] = []

    def examine(self) -> list[Line]:
        """Runs all checks and returns their lines."""
        self.check("Python", python)
        self.check("wheels", self._wheels)
        self.check("torch", self._torch)
        self.check("torch_xla", self._torch_xla, "torch")
        self.check("C++ compiler", self._compiler)
        self.check("nvcc", self._nvcc)
        # Before the probes that it would affect: if it is broken, that is reported once, and they run without it.
        self.check("LD_PRELOAD", self._ld_preload, "torch")
        self.cuda()
        self.ops()
        self.lines["LD_PRELOAD"] = self.lines.pop("LD_PRELOAD")
        # Elsewhere than in its checkout pyxla's own ops come with its wheel.
        called = []
        with contextlib.suppress(DevtoolError):
            called = ["op simple_add"] if "simple_add" in project.op_names() else []
        self.check("call on CPU", lambda: self._call("CPU"), "torch_xla", *called)
        cuda = ("CUDA plugin", "pjrt_proxy", "CUDA libraries", "driver", "GPUs")
        self.check("call on CUDA", lambda: self._call("CUDA"), *cuda, "torch_xla", *called)
        return list(self.lines.values())

    def check(self, name: str, function: Callable[[], str], *needs: str) -> None:
        """Adds a line.

        Args:
            name: the name of the check.
            function: returns what it found; raises Problem or Skip.
            needs: the checks without which it cannot run.
        """
        talks = sys.stderr.isatty()
        if talks:  # some checks take seconds
            click.echo(f"\r\033[Kdoctor: {name}", nl=False, err=True)
        try:
            for other in needs:
                line = self.lines.get(other)
                if line is None or line.status != OK:
                    raise Skip(line.found if line and line.status == SKIPPED else f"needs {other}")
            self.lines[name] = Line(name, OK, function())
        except Skip as skip:
            self.lines[name] = Line(name, SKIPPED, str(skip))
        except Problem as problem:
            self.lines[name] = Line(name, FAILED, *problem.args)
        except Exception as error:
            text, _, hint = str(error).partition("\n\nhint: ")
            otherwise = _ANEW if isinstance(error, ImportError) else "git status shows whether the checkout is complete"
            self.lines[name] = Line(name, FAILED, text if hint else repr(error), hint or otherwise)
        if talks:
            click.echo("\r\033[K", nl=False, err=True)

    def cuda(self) -> None:
        """Adds the lines on the CUDA plugin, its libraries, the driver and the GPUs."""
        wanted = self._has_gpu or os.environ.get("PYXLA_PJRT_PLUGIN") or wheel_set().startswith("cuda13")
        # The plugin alone can compile for GPUs that are not here: devtool hlo --gpu.
        plugin = wanted or any(version_of(f"jax-cuda{cuda}-pjrt") for cuda in (12, 13))

        def where(condition: object, function: Callable[[], str]) -> Callable[[], str]:
            return function if condition else self._no_gpu

        self.check("CUDA plugin", where(plugin, self._find_plugin), "torch")
        self.check("pjrt_proxy", where(plugin, self._proxy), "torch")
        self.check("CUDA libraries", where(wanted, self._cuda_libraries), "torch")
        self.check("driver", where(self._has_gpu, self._driver), "torch")
        self.check("GPUs", lambda: ", ".join(f"{name} ({dotted(cc)})" for name, cc in self._gpus), "driver")

    def ops(self, capabilities: Sequence[tuple[int, int]] | None = None) -> None:
        """Adds the line "ops" and, if that is ok, a line per op that is built and one for all others.

        Args:
            capabilities: compute capabilities that the libraries must have code for; default: those of the GPUs here.
        """
        wanted = [capability for _, capability in self._gpus] if capabilities is None else capabilities
        entries: list[dict[str, Any]] = []

        def take_inventory() -> str:
            entries.extend(self._processes.ask("ops", json.dumps(wanted), hint="devtool list"))
            return f"{len(entries)} folders in kernels/"

        self.check("ops", take_inventory, "torch")
        # A fresh checkout is in order: nothing is wrong with an op that nobody has built.
        unbuilt = [entry["op"] for entry in entries if entry["state"] == "not built"]
        for entry in entries:
            if entry["op"] not in unbuilt:
                self.check(f"op {entry['op']}", lambda entry=entry: _op(entry))
        if unbuilt:
            command = " ".join(["devtool build", *(unbuilt if len(unbuilt) < len(entries) else ())])
            self.lines["libraries"] = Line("libraries", SKIPPED, f"{NOT_BUILT}: {', '.join(unbuilt)}", command)

    def _wheels(self) -> str:
        requirements, sets = project.root() / "requirements", (wheel_set(), "dev")
        if not all((requirements / f"{name}.txt").is_file() for name in sets):
            raise Skip(f"this repository has no locks {' and '.join(sets)}")
        return wheels(requirements)

    def _torch(self) -> str:
        return self._processes.ask("torch", hint=_ANEW)

    def _torch_xla(self) -> str:
        if not os.environ.get("LD_PRELOAD"):
            # Importing it takes seconds. If the call on the CPU works, which is checked later, one process serves both.
            with contextlib.suppress(Problem):
                self._called = self._processes.ask("call", hint="")
                return self._called["torch_xla"]
        try:
            return self._processes.ask("torch_xla", hint=_ANEW)
        except Problem as problem:
            found, hint = problem.args
            if "undefined symbol" in found:
                chosen = wheel_set()
                pins = {pin.name: pin.version for pin in read_locks(project.root() / "requirements", chosen)}
                hint = f"torch_xla {pins['torch-xla']} wants torch {pins['torch']}: {install_command(chosen)}"
            raise Problem(found, hint) from None

    def _compiler(self) -> str:
        path = compiler()
        if path is None:
            got = os.environ.get("CXX") or "c++, g++ or clang++"
            raise Problem(f"expected a C++20 compiler, got no {got}", "apt-get install g++, or name one in CXX")
        command = [path, *shlex.split(os.environ.get("CXX", ""))[1:]]
        hint = "apt-get install g++ (11 or newer), or name one in CXX"
        self._processes.run([*command, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], hint, "#include <span>\n")
        return self._processes.run([*command, "--version"], hint).partition("\n")[0]

    def _nvcc(self) -> str:
        named, path = os.environ.get("CUDACXX"), find_nvcc()
        if path is None and named:
            raise Problem(f"expected a CUDA compiler, got none at CUDACXX={named}", "unset CUDACXX")
        if path is None and self._has_gpu:
            raise Problem("expected a CUDA compiler, as there is a GPU, got none", f"{_CUDA_WHEELS}, or CUDACXX=<nvcc>")
        if path is None:
            return "none: host code only"
        hint = "unset CUDACXX" if named else _CUDA_WHEELS
        version = re.search(r"release ([\d.]+)", self._processes.run([path, "--version"], hint))
        return f"{version[1] if version else 'unknown version'} ({path})"

    def _ld_preload(self) -> str:
        entries = re.split(r"[: ]+", os.environ.get("LD_PRELOAD", "").strip(" :"))
        if not any(entries):
            return "empty"
        self._processes.preload = True
        try:
            names = self._processes.ask("preload", hint="unset LD_PRELOAD")
        except Problem:
            self._processes.preload = False
            raise
        return f"{len(entries)} libraries; ops: {', '.join(names) or 'none'}"

    def _no_gpu(self) -> str:
        raise Skip(NO_GPU)

    def _find_plugin(self) -> str:
        hint = "unset PYXLA_PJRT_PLUGIN" if os.environ.get("PYXLA_PJRT_PLUGIN") else _CUDA_WHEELS
        try:
            self._plugin = self._processes.ask("api_version", hint=hint)
        except Problem:
            self._plugin = self._processes.ask("plugin", hint=hint)  # its libraries are checked anyway
            raise
        return f"{self._plugin['origin']}, PJRT API {dotted(self._plugin['api_version'])}"

    def _proxy(self) -> str:
        try:
            return self._processes.ask("proxy", hint="devtool build")
        except Problem as problem:
            if "pjrt_proxy: expected" in problem.args[0]:
                raise Skip(NOT_BUILT) from None
            raise

    def _cuda_libraries(self) -> str:
        if not self._plugin:
            raise Skip("needs CUDA plugin")
        found = self._processes.ask("cuda_libraries", hint=_CUDA_WHEELS)
        return f"{len(found)} for CUDA {self._plugin['cuda']}, {sum('/' in name for name in found)} from wheels"

    def _driver(self) -> str:
        found = self._processes.ask("driver", hint="nvidia-smi says more")
        self._gpus = [(name, tuple(capability)) for name, capability in found["gpus"]]
        if found["problem"]:
            raise Problem(*found["problem"])
        return f"for CUDA {dotted(found['version'])}, from {found['origin']}"

    def _call(self, device: str) -> str:
        found = self._called if device == "CPU" else None
        found = found or self._processes.ask("call", device=device, hint="devtool test simple_add")
        if not found["custom_call"]:
            raise Problem("expected a custom-call xla_gpu_simple_add in the HLO, got none", "devtool hlo simple_add")
        if found["wrong"]:
            raise Problem(f"expected 1000 right numbers, got {found['wrong']} wrong", "devtool test simple_add")
        return "simple_add: a custom call in the HLO, its numbers are right"


def _op(entry: dict[str, Any]) -> str:
    op, state = entry["op"], entry["state"]
    if state in ("stale", "corrupt", "unsupported"):
        raise Problem(f"{state}: {entry['reason']}", f"devtool build {op} --clean")
    if entry["misfit"]:
        message, hint = entry["misfit"]
        raise Problem(message, hint if entry["architectures"] else f"devtool build {op} --cuda on")
    return f"{state} for {' and '.join(entry['platforms'])} {', '.join(entry['architectures'])}".strip()


def print_lines(lines: Sequence[Line]) -> None:
    """Prints the lines as a table, each hint below its line."""
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # the check `wheels` reports this
        for line in lines:
            click.echo("\t".join((line.check, line.status, line.found, line.hint)))
        return
    table = Table("check", "status", "found", box=SIMPLE_HEAD, padding=0)
    styles = {OK: "", FAILED: "red", SKIPPED: "dim"}
    for line in lines:
        table.add_row(line.check, line.status, Text(line.found), style=styles[line.status])
        if line.hint:
            table.add_row("", "", Text(f"hint: {line.hint}"))
    # In a pipe no line is wrapped, so that grep works and a command can be copied.
    Console(width=None if sys.stdout.isatty() else 1000).print(table)
