"""Runs pytest on ops whose libraries are preloaded, and sums up the results of their checks."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from devtool import project
from devtool.building.build import Options, build_ops, for_cpu
from devtool.building.preload import preloading
from devtool.device import has_cuda_device, pick_device
from devtool.errors import FAILED, MISUSED, DevtoolError
from devtool.processes import how_it_ended, locate, run_through
from devtool.records.store import fingerprint, keep_tests
from devtool.testing.table import print_table
from devtool.testing.untested import cuda_lines, stub_lines

# pytest's exit statuses.
_USAGE_ERROR, _NO_TESTS = 4, 5
# The most tests that are listed as the slowest, and the fewest seconds of a listed test.
_SLOWEST, _WORTH_NAMING = 25, 1.0
_ENVIRONMENTS = {
    "address": {
        # Python and torch keep much of what they allocate until the process ends.
        "ASAN_OPTIONS": "detect_leaks=0",
        # Python's own allocator would hand out memory that the sanitizer does not see.
        "PYTHONMALLOC": "malloc",
    },
    "undefined": {"UBSAN_OPTIONS": "print_stacktrace=1"},
}


# compute-sanitizer's exit status when it found something; pytest does not use it.
_FOUND = 86


def run_tests(
    names: Sequence[str],
    device: str,
    options: Options,
    arguments: Sequence[str],
    *,
    everything: bool = False,
    processes: int | None = None,
    raw: bool = False,
    gpu_sanitizer: str | None = None,
) -> int:
    """Builds the ops, runs their tests (all tests if no op is named), prints the table; returns the exit status.

    Args:
        names: ops, each with its implementations, or folders of implementations; none means all of them, and the tests
            of the project itself.
        device: "cpu", "cuda" or "auto".
        options: how to build. The tests of named ops on the CPU need no CUDA code; all tests together also check that.
        arguments: for pytest.
        everything: also run the tests that are marked as slow, and more examples of each property-based test.
        processes: the number of pytest processes; a test file runs in one of them. None: one, or for all tests on the
            CPU one per core, up to four. One process takes a GPU's memory, and the tests of one op end before a second
            process has imported torch.
        raw: only the raw calls of the handlers, without XLA.
        gpu_sanitizer: a tool of compute-sanitizer, for raw calls on CUDA: XLA's memory is one large allocation, in
            which the tool cannot see an access out of bounds.

    Raises:
        DevtoolError: no such op, no test file, no such device, a failed build, a crash of pytest, or
            something that compute-sanitizer found.
    """
    ops = project.with_implementations(project.select_ops("test", names))
    if gpu_sanitizer and device == "cpu":
        message = f"test: --sanitize: expected --device cuda with {gpu_sanitizer}, got --device cpu"
        raise DevtoolError(message, "devtool test --device cuda, or --sanitize address for host code", MISUSED)
    sanitizer = under_gpu_sanitizer("test", gpu_sanitizer) if gpu_sanitizer else []
    raw = raw or bool(sanitizer)
    # If there are none, pytest takes the files among `arguments`, else its own setting: all tests.
    files = [_tests_of(op) for op in ops if names] or (["-o", "testpaths=kernels"] if raw else [])
    device = pick_device("test", "cuda" if gpu_sanitizer else device)
    if processes is None:
        processes = 1 if names or arguments or raw or device == "cuda" else min(4, len(os.sched_getaffinity(0)))
    libraries = build_ops(ops, for_cpu(options) if names and device == "cpu" else options)
    environment = {**os.environ, **sanitizer_environment(options.sanitize)}
    begun = {op: fingerprint(op) for op in ops}
    # A sanitizer writes its report to the process's own stderr and ends the process: pytest must not capture that.
    captured = ["--capture=sys"] if options.sanitize else []
    with (
        preloading(libraries, options.sanitize) as environment["LD_PRELOAD"],
        tempfile.TemporaryDirectory(prefix="devtool-test-") as folder,
    ):
        records, outcomes = Path(folder, "records.json"), Path(folder, "outcomes.json")
        command = [
            *sanitizer, sys.executable, "-m", "pytest",
            "-p", "pyxla.pytest_plugin", "-p", "devtool.testing.pytest_outcomes",
            "-p", "devtool.testing.pytest_failures",
            "--device", device, "--pyxla-records", str(records), "--devtool-outcomes", str(outcomes),
            "--continue-on-collection-errors",  # an op that cannot be imported does not stop the others' tests
            *(["--hypothesis-profile=thorough"] if everything else ["--without-slow"]),
            *(["-n", str(processes)] if processes > 1 else []), *(["--raw"] if raw else []),
            *captured, *files, *arguments,
        ]  # fmt: skip
        status = run_through(command, project.root(), environment)
        seen = json.loads(records.read_text()) if records.is_file() else {"device": {"kind": device}, "checks": []}
        ended = json.loads(outcomes.read_text()) if outcomes.is_file() else None
    print_table(seen["checks"])
    # A run of only some tests, or of another library, says little about the op.
    if not (arguments or raw or options.sanitize):
        keep_tests(begun, status, seen["device"], seen["checks"], ended and ended["outcomes"])
    counts = Counter(ended["outcomes"].values()) if ended is not None else None
    left_out = ended["left_out"] if ended is not None else 0
    if status != _FOUND:
        _require_results(status, counts, names, options, left_out)
    if counts is not None:
        _print_slowest(ended["seconds"])
        for line in stub_lines(ops):
            click.echo(line)
        if device == "cpu":
            reason = "--device cpu" if has_cuda_device() else "no GPU"
            for line in cuda_lines(ops, names, options.sanitize, seen["checks"], reason):
                click.echo(line)
        said = [f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped")]
        said += [f"{left_out} slow ones left out ({_command_for_all(names)})"] if left_out else []
        click.echo(", ".join(said))
    if status == _FOUND:
        message = f"test: --sanitize: {gpu_sanitizer} found errors (see above)"
        raise DevtoolError(message, "look at the first report: the access, the kernel and its line")
    return min(status, FAILED)


def _print_slowest(seconds: Mapping[str, float]) -> None:
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:_SLOWEST]
    slowest = [(test, taken) for test, taken in slowest if taken >= _WORTH_NAMING]
    if slowest:
        click.echo("slowest tests, in seconds:")
        for test, taken in slowest:
            click.echo(f"{taken:7.1f}  {test}")
        click.echo()


def _command_for_all(names: Sequence[str]) -> str:
    return " ".join(["devtool test", *names, "--all"])


def sanitizer_environment(sanitize: str | None) -> dict[str, str]:
    """What the sanitizers of host code, "address" or "address,undefined", need in the environment."""
    return {name: value for tool in (sanitize or "").split(",") for name, value in _ENVIRONMENTS.get(tool, {}).items()}


def under_gpu_sanitizer(where: str, tool: str) -> list[str]:
    """The command that runs another one under compute-sanitizer.

    Raises:
        DevtoolError: there is none.
    """
    program = locate("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if program is None:
        message = f"{where}: --sanitize: expected compute-sanitizer, got none on PATH"
        raise DevtoolError(message, "install it (it comes with the CUDA toolkit) and put it on PATH")
    # A backtrace of the host's would have Python's own functions, and it makes a call take up to 0.25 s: it is taken at
    # each allocation, copy and launch.
    return [program, "--tool", tool, "--error-exitcode", str(_FOUND), "--show-backtrace", "no"]


def _tests_of(op: str) -> str:
    if not any((project.kernels() / op).glob("test_*.py")):
        raise DevtoolError(
            f"test: {op}: expected kernels/{op}/test_{op}.py, got no test file",
            "copy kernels/simple_add/test_simple_add.py and adapt it",
        )
    return f"kernels/{op}"


def _require_results(
    status: int, counts: dict | None, names: Sequence[str], options: Options, left_out: int = 0
) -> None:
    if status == _USAGE_ERROR:
        message = "test: pytest rejected its arguments (see above)"
        raise DevtoolError(message, "pytest --help", MISUSED)
    if status == _NO_TESTS:
        if left_out:
            message = f"test: pytest: expected a test that is not slow, got {left_out} slow ones"
            raise DevtoolError(message, _command_for_all(names))
        raise DevtoolError("test: pytest: expected a test, got none with these arguments", "leave out -k or -m")
    if counts is None or status < 0:  # also if pytest died after its last test
        hint = "read the message above"
        if status < 0:
            command = " ".join(["devtool test", *names, "--sanitize address"])
            hint = f"{command} finds reads and writes out of bounds"
        elif options.sanitize:
            hint = "the sanitizer's report is above"
        raise DevtoolError(f"test: pytest {how_it_ended(status)} before its end", hint)
