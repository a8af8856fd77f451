"""`python -m examples.llama`: its output, and its errors for wrong options."""

import os
import re
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from examples.llama.__main__ import main
from tests.conftest import ROOT

SMALL = ("--max-tokens", "12")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def run(*options):
    """What the command printed; an exception other than its own errors is the test's."""
    return CliRunner().invoke(main, [*SMALL, *options], catch_exceptions=False)


def test_command_as_a_user_runs_it():
    """In its own process, so that --device takes effect; text on stdout, the time on stderr."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PJRT_DEVICE", "XLA_FLAGS")}
    command = [sys.executable, "-m", "examples.llama", *SMALL, "--device", "cpu", "--prompt", "Once upon a time"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("Once upon a time") and len(re.findall(r"<\d+>|.", line)) == 16 + 12
    # One graph prefills, the other decodes.
    assert re.search(r"^12 tokens in \d+\.\d\d s, 2 graphs compiled \(direct, CPU\)\n", done.stderr), done.stderr


def test_modes_print_the_same(monkeypatch):
    options = ("--prompt", "Once", "--prompt", "upon a time", "--temperature", "0.8", "--seed", "5")
    direct = run(*options, "--mode", "direct")
    monkeypatch.setenv("PYXLA_ATTENTION_MODE", "compile")
    compiled = run(*options)
    assert direct.exit_code == compiled.exit_code == 0, compiled.output
    assert direct.stdout == compiled.stdout and len(direct.stdout.splitlines()) == 2
    assert "(direct, " in direct.stderr and "(compile, " in compiled.stderr
    assert run(*options, "--seed", "6").stdout != direct.stdout


def test_a_float8_cache_prints_something_else():
    options = ("--prompt", "Once upon a time", "--max-tokens", "40")
    float8 = run(*options, "--kv-cache-dtype", "float8_e4m3fn")
    assert float8.exit_code == 0, float8.output
    assert run(*options, "--kv-cache-dtype", "auto").stdout == run(*options).stdout != float8.stdout


def run_alone(*options):
    """In its own process, because the number of devices is fixed once a process has a tensor."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CPU_NUM_DEVICES", "XLA_FLAGS")}
    command = [sys.executable, "-m", "examples.llama", *SMALL, "--device", "cpu", *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(os.environ.get("PJRT_DEVICE") == "CUDA", reason="compares virtual CPU devices with one CPU device")
def test_two_devices_print_what_one_does():
    options = ("--prompt", "Once", "--prompt", "upon a time", "--mode", "compile")
    two = run_alone(*options, "--tensor-parallel", "2")
    assert two.returncode == 0, two.stderr
    assert two.stdout == run(*options).stdout and len(two.stdout.splitlines()) == 2


def test_devices_that_there_are_not():
    done = run_alone("--prompt", "Once", "--tensor-parallel", "0")
    assert done.returncode == 2
    assert done.stderr.startswith("llama: tensor-parallel: expected a divisor of 1, the number of devices, got 0\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mode", "eager"), "attention_mode: mode: expected direct or compile, got eager\n\nhint: "),
        (("--device", "tpu"), "llama: device: expected cpu or cuda, got tpu"),
        (("--config", "huge"), "llama: config: expected tiny or llama-3-8b, got huge\n\nhint: "),
        (("--dtype", "int8"), "llama: dtype: expected float32 or bfloat16 or float16, got int8"),
        (("--kv-cache-dtype", "fp8"), "llama: kv-cache-dtype: expected auto or float8_e4m3fn, got fp8"),
        (
            ("--max-tokens", "1021"),
            "llama: prompt: expected at most 1024 tokens with max_tokens, got 4 and 1021\n\nhint: ",
        ),
        (("--max-tokens", "0"), "llama: max_tokens: expected a count of 1 or more, got 0"),
        (("--prompt", ""), "llama: prompt: expected at least 1 token, got 0"),
        (("--seed", str(2**48)), f"llama: seed: expected a number in [0, 2**48), got {2**48}"),
        (("--temperature", "-1"), "llama: temperature: expected a number of 0 or more, got -1.0"),
    ],
)
def test_options_that_do_not_fit(options, message):
    result = run("--prompt", "Once", *options)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith(message), result.stderr


def test_no_prompt():
    result = run()
    assert result.exit_code == 2
    assert result.stderr == "llama: prompt: expected at least one, got none\n"


def test_a_folder_without_weights(tmp_path):
    result = run("--weights", str(tmp_path), "--prompt", "Once")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"llama: config: expected a readable {tmp_path}/config.json, got FileNotFoundError")
