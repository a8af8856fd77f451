"""Which tests of an op the plugin marks slow."""

import re
import subprocess
import sys

import pytest

TESTS = """
import pytest
import torch

from pyxla import testing


def case(name, length, **more):
    return testing.Case(name, "why", lambda g: {"x": torch.zeros(length)}, **more)


CASES = [case("first", 3), case("alike", 5), case("empty", 0), case("cuda", 7, cuda_size=True)]


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(None, case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_other(case):
    pass
"""
FORM = {"check_compiled", "check_hlo", "check_cpu", "check_opcheck"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_slow_tests_of_an_op(tmp_path, device):
    """Cases of the same form run the form's checks only once; a size for CUDA runs only check_raw on the CPU."""
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "pyxla.pytest_plugin", f"--device={device}", "-m", "slow"]
    run = subprocess.run([*command, "--collect-only", "-q"], cwd=tmp_path, capture_output=True, text=True)
    slow = set(re.findall(r"::(\S+)", run.stdout))
    of_form = {f"test_op[{case}-{check}]" for case in ("alike", "cuda") for check in FORM}
    of_cuda = {"test_op[cuda-check_lazy]", "test_other[cuda]"} if device == "cpu" else set()
    assert slow == of_form | of_cuda, run.stdout + run.stderr
