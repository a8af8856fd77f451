"""Builds and tests ops again whenever a file that they depend on is saved."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from devtool import project
from devtool.building.build import Options, build_ops, for_cpu
from devtool.device import pick_device
from devtool.errors import DevtoolError

# What a library is built from; a Python file needs no build.
COMPILED = {".cc", ".cu", ".h", ".cuh", ".cpp", ".c", ".cmake", ".txt", ".json", ""}
# Editors write a file in several steps.
QUIET_MS = 50
POLL_MS = 100


def watch(names: Sequence[str], device: str, options: Options, arguments: Sequence[str]) -> None:
    """Builds and tests the ops, and again after each change, until Ctrl-C.

    Args:
        names: ops, each with its implementations.
        device: "cpu", "cuda" or "auto".
        options: how to build.
        arguments: for pytest.

    Raises:
        DevtoolError: no such op or device.
    """
    import watchfiles

    folders = project.with_implementations(project.select_ops("watch", names))
    device = pick_device("watch", device)
    options = for_cpu(options) if device == "cpu" else options
    places = [project.kernels(), *([project.pyxla_folder()] if project.pyxla_folder().parent == project.root() else [])]
    with contextlib.suppress(KeyboardInterrupt), _Tests(folders, device, arguments) as tests:
        changes = watchfiles.watch(
            *places, watch_filter=_is_source, debounce=QUIET_MS, step=QUIET_MS, rust_timeout=POLL_MS,
            yield_on_timeout=True, raise_interrupt=True,
        )  # fmt: skip
        # It watches from here on, so that what is saved while the first build runs is seen after it.
        next(changes)
        if _build(folders, options):
            tests.run()
        for found in changes:
            tests.look()
            changed = _relevant({Path(path) for _, path in found}, folders)
            if not changed:
                continue
            shown = sorted(str(path.relative_to(project.root())) for path in changed)
            click.echo(f"watch: {', '.join(shown)}", err=True)
            tests.stop()
            if not any(path.suffix in COMPILED for path in changed) or _build(folders, options):
                tests.run()


def _is_source(change: object, path: str) -> bool:
    name = Path(path).name
    return Path(path).suffix in COMPILED | {".py"} and not name.startswith(".") and "__pycache__" not in path


def _relevant(changed: Iterable[Path], folders: Sequence[str]) -> set[Path]:
    """Without the folders of other ops. What several ops share begins with an underscore, or is pyxla's."""
    others = set(project.op_names()) - set(folders)
    return {path for path in changed if not (path.is_relative_to(project.kernels()) and _top(path) in others)}


def _top(path: Path) -> str:
    return path.relative_to(project.kernels()).parts[0]


def _build(folders: Sequence[str], options: Options) -> bool:
    """Whether the ops could be built; otherwise says why."""
    try:
        build_ops(folders, options)
    except DevtoolError as error:
        error.show()
        return False
    return True


class _Tests:
    """The tests of some ops, in forks of a process that has imported what takes long."""

    def __init__(self, folders: Sequence[str], device: str, arguments: Sequence[str]):
        files = [f"kernels/{folder}" for folder in folders]
        names = ("pyxla.pytest_plugin", "devtool.testing.pytest_outcomes", "devtool.testing.pytest_failures")
        plugins = [word for name in names for word in ("-p", name)]
        self._arguments = [*plugins, "--device", device, "--without-slow", "-q", *files, *arguments]
        self._running: int | None = None
        self._answers, self._end = os.pipe()

    def __enter__(self) -> _Tests:
        command = [sys.executable, "-P", "-m", "devtool.testing.warm", str(self._end)]
        self._warm = subprocess.Popen(
            command, stdin=subprocess.PIPE, text=True, cwd=project.root(), pass_fds=[self._end]
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._warm.stdin.close()
        self._warm.terminate()
        self._warm.wait()

    def run(self) -> None:
        """Starts a run."""
        self._warm.stdin.write(json.dumps(self._arguments) + "\n")
        self._warm.stdin.flush()
        self._running = 0

    def look(self) -> None:
        """Takes notice of what has happened."""
        while select.select([self._answers], [], [], 0)[0]:
            for line in os.read(self._answers, 4096).decode().splitlines():
                word, _, number = line.partition(" ")
                if word == "began":
                    self._running = int(number)
                elif word == "ended":
                    self._running = None
                    click.echo(f"watch: {_OUTCOMES.get(int(number), f'pytest ended with {number}')}", err=True)

    def stop(self) -> None:
        """Ends the run under way."""
        self.look()
        while self._running is not None:
            if self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._running, signal.SIGKILL)
            if self._warm.poll() is not None:
                break
            select.select([self._answers], [], [], 1)
            self.look()


# pytest's exit statuses; a negative one is a signal.
_OUTCOMES = {
    0: "green; waiting for a change",
    1: "red; waiting for a change",
    5: "no test; waiting for a change",
    -signal.SIGKILL: "stopped, because something changed",
}
