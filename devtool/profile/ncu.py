"""Runs Nsight Compute: over the child process that makes the call, then over its report to read it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from devtool import project
from devtool.building.tools import find_nvcc
from devtool.errors import DevtoolError
from devtool.processes import how_it_ended, run_lines

_OPTIONS = (
    # The child's own processes too, the clocks as they are, and only what is between the child's marks.
    "--target-processes", "all", "--clock-control", "none", "--profile-from-start", "off", "--set", "full",
)  # fmt: skip
# The symbols of kernels, as they are in the machine code.
SYMBOLS = ("--print-kernel-base", "mangled")
_NOT_ALLOWED = re.compile(r"ERR_NVGPUCTRPERM")


def find_ncu() -> str | None:
    """ncu on PATH, in the CUDA toolkit, or where NVIDIA's own installer puts it, the newest first."""
    beside = [Path(nvcc).resolve().parent] if (nvcc := find_nvcc()) else []
    own = sorted(Path("/opt/nvidia/nsight-compute").glob("20*"), reverse=True)
    places = [*beside, Path("/usr/local/cuda/bin"), *own]
    return shutil.which("ncu") or shutil.which("ncu", path=os.pathsep.join(map(str, places)))


def record(ncu: str, command: Sequence[str], environment: Mapping[str, str], report: Path) -> list[str]:
    """Runs a command under Nsight Compute, writes its report and returns the lines that the command printed.

    There is no report if no kernel ran between the marks.

    Args:
        ncu: from `find_ncu`.
        command: makes the call between the marks of CUDA's profiler.
        environment: of the command.
        report: the file to write, which ends in .ncu-rep.

    Raises:
        DevtoolError: ncu may not read the counters, or it or the command failed.
    """
    lines: list[str] = []
    words = [ncu, *_OPTIONS, "--force-overwrite", "--export", str(report), *command]
    words = [ncu, *_OPTIONS, "--force-overwrite", "--export", str(report), *command]
    status = run_lines(words, lines.append, environment, project.root())
    said = [line for line in lines if line.startswith("==")]
    if any(map(_NOT_ALLOWED.search, said)):
        message = "profile: ncu: expected the right to read the GPU's counters, got ERR_NVGPUCTRPERM"
        hint = "run as root, or load NVIDIA's module with NVreg_RestrictProfilingToAdminUsers=0; --static does without"
        raise DevtoolError(message, hint)
    if status:
        errors = [line.removeprefix("==ERROR== ") for line in said if line.startswith("==ERROR==")]
        got = errors[0] if errors else f"one that {how_it_ended(status)}"
        raise DevtoolError(
            f"profile: ncu: expected a profile of the call, got {got}",
            "devtool profile OP --static reads the machine code alone; devtool doctor checks the GPU",
        )
    return [line for line in lines if not line.startswith("==")]


def page(ncu: str, report: Path, *arguments: str) -> str:
    """A page of a report as CSV.

    Args:
        arguments: which page: "--page", "raw".

    Raises:
        DevtoolError: ncu cannot read the report.
    """
    command = [ncu, "--import", str(report), "--csv", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        got = (done.stdout + done.stderr).strip().partition("\n")[0] or how_it_ended(done.returncode)
        raise DevtoolError(f"profile: ncu: expected a page of {report.name}, got {got}", f"{ncu} --version")
    return done.stdout
