"""`devtool bench`: what it measures, shows, saves and rejects. No test depends on a time."""

import json
import os
import pty
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from devtool.bench import process
from devtool.errors import DevtoolError
from devtool.records import run_file
from devtool.records.run_file import read_run
from tests.bench_run import assert_is_picture
from tests.devtool_tree import Tree

OP = "doubled"
WRONG = f"{OP} f32-3x1000"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run of an op that is wrong at one size: its tree, stdout, stderr (a terminal), exit status and file."""
    tree = Tree(tmp_path_factory.mktemp("bench"))
    tree.new_op(OP)
    cases = tree.kernels / OP / "cases.py"
    last = '("cpu", "f32", torch.float32, (1024, 4096), "some milliseconds"),'
    assert last in cases.read_text()
    cases.write_text(
        cases.read_text().replace(last, f'{last}\n        ("cpu", "f32", torch.float32, (3, 1000), "wrong"),')
    )
    host = tree.kernels / OP / f"{OP}_host.cc"
    assert "factor * blend)" in host.read_text()
    # One element, slightly wrong.
    host.write_text(
        host.read_text().replace(
            "factor * blend)", "factor * blend * (i == 2999 && params.element_count == 3000 ? 1.01f : 1))"
        )
    )
    kept = tree.root / "run.json"
    arguments = ("--device", "cpu", "--rounds", "2", "--layer", "raw", "--layer", "xla", "--json", str(kept))
    terminal, end = pty.openpty()
    child = subprocess.Popen(
        tree.command("bench", OP, *arguments), cwd=tree.root, env=tree.environment(TERM="xterm"),
        stdout=subprocess.PIPE, stderr=end, text=True,
    )  # fmt: skip
    os.close(end)
    said: list[bytes] = []
    listener = threading.Thread(target=lambda: said.extend(iter(lambda: _read(terminal), b"")))
    listener.start()
    stdout, _ = child.communicate()
    listener.join()
    os.close(terminal)
    return tree, stdout, b"".join(said).decode(), child.returncode, kept


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


def test_wrong_kernel_is_not_timed(measured):
    _, stdout, stderr, status, kept = measured
    assert status == 1
    where = rf"bench: {WRONG}: raw: {OP}\[f32-3x1000\]: values: expected .* at \(2, 999\), got"
    assert re.search(where, stderr), stderr
    assert "bench: wrong numbers in 1 layers, which were not timed" in stderr
    assert f"hint: devtool test {OP}" in stderr
    right, wrong = read_run("--load", kept).cases
    assert wrong.refused and not wrong.layers and not right.refused
    assert re.search(r"f32-3x1000 +raw +WRONG", stdout)


def test_right_kernel_is_timed_in_every_layer(measured):
    (right, _) = read_run("--load", measured[-1]).cases
    assert [layer.name for layer in right.layers] == ["raw", "raw step", "xla step"]
    for layer in right.layers:
        assert len(layer.seconds) == 2 and min(layer.seconds) > 0
    assert (right.bytes, right.operations, right.bound) == (2 * 1024 * 4096 * 4, 2 * 1024 * 4096, "copy")
    one, *steps = [layer.calls for layer in right.layers]
    assert one == 1 and steps[0] == steps[1] > 1


def test_table_goes_to_stdout_and_the_bar_to_stderr(measured):
    _, stdout, stderr, _, _ = measured
    assert "\x1b" not in stdout and "━" not in stdout and "round" not in stdout
    assert "━" in stderr and "%" in stderr
    for row in ("raw", r"raw step of \d+", r"xla step of \d+"):
        pattern = rf"^.* {row} +[\d.]+ (us|ms|s) +\d+% +[\d.]+ [KMGT]?B/s +\d+% +\d+\.\d\d *$"
        assert len(re.findall(pattern, stdout, re.MULTILINE)) == 1, row
    assert "copies " in stdout and "multiplies " in stdout


def test_kept_run_says_what_it_is(measured):
    document = json.loads(measured[-1].read_text())
    assert document["schema"] == run_file.SCHEMA
    assert (document["rounds"], document["device"]["kind"]) == (2, "cpu")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", document["date"])
    assert {"torch", "torch_xla", "python"} <= document["versions"].keys()
    assert all(document["rates"][name]["per_second"] > 0 for name in ("copy", "matrix"))
    assert all(len(case["control"]) == 2 for case in document["cases"] if "refused" not in case)
    assert not list(measured[-1].parent.glob(".run.json*"))


def test_kept_run_is_shown_drawn_and_compared_without_measuring(measured, tmp_path):
    tree, stdout, _, _, kept = measured
    again = tmp_path / "again.json"
    picture = tmp_path / "run.png"
    result = tree.run("bench", "--load", str(kept), "--json", str(again), "--plot", str(picture))
    assert result.returncode == 1 and result.stdout == stdout  # its op is still wrong
    assert json.loads(again.read_text()) == json.loads(kept.read_text())
    assert_is_picture(picture)


def test_benches_are_listed(measured):
    tree = measured[0]
    result = tree.run("bench", OP, "--device", "cpu", "--list")
    assert (result.returncode, result.stdout) == (
        0,
        f"{OP}\tf32-1024x4096\tsome milliseconds\n{OP}\tf32-3x1000\twrong\n",
    )


def test_bench_that_does_not_exist(measured):
    result = measured[0].run("bench", OP, "--device", "cpu", "--case", "f32-1024x4069")
    assert result.returncode == 2 and result.stdout == ""
    message = "bench: --case: expected a bench of these ops (f32-1024x4096, f32-3x1000), got f32-1024x4069"
    assert result.stderr.endswith(f"{message}\n\nhint: did you mean f32-1024x4096?\n")


def test_op_without_benches(measured):
    tree = measured[0]
    tree.tiny_op("tiny")
    result = tree.run("bench", "tiny", "--device", "cpu")
    assert result.returncode == 2
    assert "bench: BENCHES: expected a bench for this device in kernels/tiny/cases.py, got none" in result.stderr


def test_run_of_another_device_ends_before_anything_is_timed(measured, tmp_path):
    tree, *_, kept = measured
    document = json.loads(kept.read_text())
    document["device"] = {"kind": "cuda", "name": "NVIDIA H200", "capability": "9.0", "driver": "CUDA 13.0"}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    result = tree.run("bench", OP, "--device", "cpu", "--compare", str(other))
    assert result.returncode == 1 and result.stdout == ""
    assert "bench: --compare: expected a run on cpu, " in result.stderr
    assert "got one on cuda, NVIDIA H200, 9.0, CUDA 13.0\n\nhint: " in result.stderr
    assert "rate" not in result.stderr


def test_interrupt_ends_the_measurement_too(measured):
    tree = measured[0]
    child = tree.start("bench", OP, "--device", "cpu", "--rounds", "10000", "--layer", "raw")
    for line in child.stderr:
        if line.startswith("bench: copy rate"):
            break
    os.kill(child.pid, signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130 and stderr.endswith("devtool: interrupted\n")
    deadline = time.monotonic() + 20
    mark = str(tree.root).encode()
    while any(mark in _environment(p) and b"pyxla.benchmark" in _command(p) for p in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_measurement_that_crashes_is_named(capfd, tmp_path):
    reader = process.Reader()
    reader.read('{"tell": "doubled f32-3x5: raw"}')
    with (tmp_path / "said").open("w+") as said:
        said.write("the last words\n")
        with pytest.raises(DevtoolError, match=r"bench: doubled f32-3x5: raw: the measuring process crashed \(SIGSEGV"):
            process._require_end("bench", -signal.SIGSEGV, reader, said)
    assert capfd.readouterr().err == "the last words\n"
