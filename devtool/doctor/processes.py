"""Runs the probes of `devtool doctor` in separate processes, and says how they ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devtool.doctor.python import Problem
from devtool.processes import how_it_ended, run_captured


class Processes:
    """Starts processes.

    Args:
        timeout: the most seconds that each may take.

    Attributes:
        preload: whether the processes get LD_PRELOAD.
    """

    def __init__(self, timeout: float):
        self._timeout, self.preload = timeout, False

    def ask(self, probe: str, *arguments: str, hint: str, device: str = "CPU") -> Any:
        """What a probe found; raises Problem if it raised, crashed or hung, with `hint` if the probe gave none."""
        command = [sys.executable, "-P", "-m", "devtool.doctor.probes", probe, *arguments]
        environment = self.environment() | {"PJRT_DEVICE": device}
        # The checkout comes last: it is found if devtool is not installed, and changes nothing if it is.
        paths = [os.environ.get("PYTHONPATH"), str(Path(__file__).resolve().parents[2])]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        try:
            done = run_captured(command, self._timeout, environment)
        except subprocess.TimeoutExpired:
            raise Problem(f"expected an answer within {self._timeout:g} s, got none", hint) from None
        if refused := re.findall(r"ld\.so: object '(.*)' from LD_PRELOAD cannot be preloaded \((.*?)\)", done.stderr):
            got = "; ".join(f"{name}: {reason}" for name, reason in refused)
            raise Problem(f"expected libraries that can be loaded, got {got}", "take it out of LD_PRELOAD")
        if done.returncode:
            raise Problem(f"the process that checks {_end(done)}", hint)
        answer = json.loads(done.stdout)
        if "problem" in answer:
            raise Problem(answer["problem"], answer["hint"] or hint)
        return answer["found"]

    def run(self, command: Sequence[str], hint: str, text: str = "") -> str:
        """The output of a tool; raises Problem if it fails."""
        try:
            done = run_captured(command, self._timeout, self.environment(), text)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Problem(f"expected {command[0]} to run, got {error}", hint) from None
        if done.returncode:
            raise Problem(f"{' '.join(command)} {_end(done)}", hint)
        return done.stdout

    def environment(self) -> dict[str, str]:
        """The environment of the processes: this process's, without LD_PRELOAD unless `preload` is set."""
        return {name: value for name, value in os.environ.items() if self.preload or name != "LD_PRELOAD"}


def _end(done: subprocess.CompletedProcess) -> str:
    """How a program ended, and the last line of its stderr."""
    return ": ".join([how_it_ended(done.returncode), *done.stderr.strip().splitlines()[-1:]])
