"""Runs other programs so that none of them outlives devtool: not after Ctrl-C, not after a kill."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_libc = ctypes.CDLL(None)


def locate(tool: str) -> str | None:
    """The tool next to this Python (from the locked wheel), else the one on PATH."""
    return shutil.which(tool, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))


def run_lines(
    command: Sequence[str],
    on_line: Callable[[str], None],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stderr: IO | int = subprocess.STDOUT,
) -> int:
    """Runs a program, passes on each line that it prints, and returns its exit status, negative for a signal.

    The program gets its own process group: Ctrl-C reaches only devtool, which passes it on and waits.

    Args:
        stderr: where its stderr goes; by default its lines are passed on too.
    """
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, errors="replace",
        env=env, cwd=cwd, process_group=0, preexec_fn=end_with_devtool,
    )  # fmt: skip
    try:
        with child.stdout:
            for line in child.stdout:
                on_line(line.rstrip("\n"))
        return child.wait()
    except BaseException:
        _end_tree(child)
        raise


def event_in(line: str) -> dict[str, Any]:
    """The JSON object in a line; none, and the line on stderr, if it is something else: an op may print."""
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict):
            return event
    print(line, file=sys.stderr)
    return {}


def run_through(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], stdout: IO | None = None, stderr: IO | None = None
) -> int:
    """Runs a program on devtool's own terminal and returns its exit status, negative for a signal.

    Args:
        stdout, stderr: where its stdout and stderr go; by default to devtool's.
    """
    child = subprocess.Popen(command, cwd=cwd, env=env, stdout=stdout, stderr=stderr, preexec_fn=end_with_devtool)
    try:
        return child.wait()
    except BaseException:
        try:
            # A Ctrl-C on the terminal has reached the child too; a second one would cut its clean-up short.
            child.wait(timeout=2)
        except subprocess.TimeoutExpired:
            _end(child)
        raise


def run_captured(
    command: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess:
    """Runs a program that may hang, with `text` as its stdin; returns its exit status and output.

    Raises:
        subprocess.TimeoutExpired: it did not end in `timeout` seconds; it was killed, with all processes of its group.
    """
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        env=env, process_group=0, preexec_fn=end_with_devtool,
    )  # fmt: skip
    try:
        output, errors = child.communicate(text, timeout)
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in a driver survives SIGKILL
            child.communicate(timeout=5)
        raise
    return subprocess.CompletedProcess(command, child.returncode, output, errors)


def how_it_ended(status: int) -> str:
    """How a program with a nonzero exit status ended, for an error: "crashed (SIGSEGV)", "failed (exit status 1)"."""
    if status >= 0:
        return f"failed (exit status {status})"
    number = signal.Signals(-status)
    killed = number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return f"{'was killed' if killed else 'crashed'} ({number.name})"


def _end_tree(child: subprocess.Popen) -> None:
    """Ends a program that has its own process group, and everything that it started.

    ninja passes SIGINT on to its commands and waits for them, but a command that starts at that moment may miss it (one
    in a hundred did). So the commands get SIGINT again; ninja then removes half-written files and ends.
    """
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGINT)
    for _ in range(10):
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1)
            return
        _signal(_descendants(child.pid), signal.SIGINT)
    _signal([*_descendants(child.pid), child.pid], signal.SIGKILL)
    child.wait()


def _descendants(process: int) -> list[int]:
    children: list[int] = []
    for path in Path("/proc").glob(f"{process}/task/*/children"):
        with contextlib.suppress(OSError):
            children += map(int, path.read_text().split())
    return children + [pid for child in children for pid in _descendants(child)]


def _signal(processes: list[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _end(child: subprocess.Popen) -> None:
    for number, patience in ((signal.SIGINT, 10), (signal.SIGKILL, None)):
        if child.poll() is None:
            child.send_signal(number)
        try:
            child.wait(timeout=patience)
            return
        except subprocess.TimeoutExpired:
            continue


def end_with_devtool() -> None:
    """Has this process get SIGINT when its parent ends."""
    # 1: PR_SET_PDEATHSIG. SIGINT, because ninja then ends its compilers and removes their half-written files.
    _libc.prctl(1, signal.SIGINT)
