"""Checks an input in a process of its own, so that a crash is one outcome among others."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import Any

from pyxla.fuzz.check import Outcome, check_input

# An input that takes longer hangs. Each that hypothesis tries while it shrinks takes as long.
HANG_S = 10
# Of a sanitizer's report: the first lines name the mistake and its place.
_LINES = 12


def check_isolated(op: Any, drawn: Any, platform: str) -> Outcome:
    """As `check_input`, in a fork of this process; call it before the process has threads of its own."""
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as errors:
        child = os.fork()
        if not child:
            _answer(op, drawn, platform, told.fileno(), errors.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told.seek(0)
        if status == 0:
            return Outcome(*json.loads(told.read()))
        errors.seek(0)
        lines = errors.read().decode(errors="replace").splitlines()
    report = [line for line in lines if line.strip()][:_LINES]
    how = f"crashed ({signal.Signals(-status).name})" if status < 0 else f"failed (exit status {status})"
    return Outcome(f"the handler {how}", "\n".join(report) or "nothing more is known")


def _answer(op: Any, drawn: Any, platform: str, told: int, errors: int) -> None:
    status = 1
    try:
        os.dup2(errors, 2)
        faulthandler.enable()
        signal.alarm(HANG_S)
        os.write(told, json.dumps(check_input(op, drawn, platform)).encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
