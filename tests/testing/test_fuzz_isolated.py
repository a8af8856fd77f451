"""fuzz looks for an input again that ended its process: each gets a process of its own."""

import json
import subprocess
import sys

from tests.conftest import ROOT

# One second in place of ten and sixty.
CODE = """
import sys, time
import pyxla.fuzz.__main__ as fuzz
from pyxla.fuzz import isolated
from pyxla.fuzz.check import Outcome

def check(op, drawn, platform):
    if drawn.arguments()["a"].numel() > 8:
        time.sleep(60)
    return Outcome("right")

isolated.check_input, isolated.HANG_S, fuzz.INPUT_S = check, 1, 1
job = {"op": "simple_add", "platform": "Host", "seed": 0, "first": 0, "step": 1, "rounds": 1, "calls": 40}
fuzz.run(fuzz.Job(**job, seconds=None, isolated=True, folder=sys.argv[1], kept=sys.argv[1] + "/kept"))
"""


def test_input_that_hangs_is_found(tmp_path):
    """Its own process ends after a while, and not the one that waits for it."""
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found").read_text())
    assert found["kind"] == "the handler crashed (SIGALRM)"
    assert "Case(" in found["code"]
