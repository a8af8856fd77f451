"""The process that makes a call for `devtool profile`: which inputs an op has, and what it answers without one."""

import json
import subprocess
import sys

import pytest

import pyxla
from pyxla.benchmark.one_call import inputs_of, select_input
from tests.conftest import ROOT


def answer(*arguments: str):
    command = [sys.executable, "-P", "-m", "pyxla.benchmark.one_call", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    return json.loads(line)


@pytest.mark.parametrize(
    ("op", "first", "others"),
    [
        ("rms_norm", "bf16-16384x4096", {"f32-3x5"}),
        ("rms_norm.triton", "bf16-16384x4096", {"f32-3x5"}),
        # The benches of the folder are those of paged_attention.
        ("paged_attention_lse", None, set()),
    ],
)
def test_benches_for_a_gpu_come_before_the_cases(op, first, others):
    from pyxla.benchmark import Bench

    found = inputs_of(pyxla.find_op(op))
    benches = [each for each in found if isinstance(each, Bench)]
    assert found[: len(benches)] == benches and all("cuda" in bench.devices for bench in benches)
    assert (benches[0].name if benches else None) == first
    assert others <= {each.name for each in found[len(benches) :]} and len(found) > len(benches)


def test_input_without_a_name_has_something_to_compute():
    op = pyxla.find_op("paged_attention_lse")
    chosen = select_input(op, None)
    assert chosen.arguments()["query"].numel() > 0
    assert select_input(op, chosen.name).name == chosen.name and select_input(op, "nothing") is None


def test_unknown_case_is_answered_with_those_that_there_are():
    found = answer("xla_gpu::simple_add", "--case", "f32-3x6")
    assert found["unknown"] == "f32-3x6" and "f32-3x5" in found["known"]


def test_unknown_op():
    found = answer("xla_gpu::simple_sub", "--list")
    assert found["problem"].startswith("xla_gpu::simple_sub: op: expected one that is declared, got ")
