"""`devtool tune` in a repository of one's own: an op whose host code has parameters, really built and timed.

A variant that sleeps is the slower one on any machine; no other time is compared.
"""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.devtool.scaffold.test_init import environment, made, run
from tests.devtool_tree import processes_in

pytestmark = pytest.mark.slow
OP = "waiting"
ROUNDS = ("--rounds", "10")
# Milliseconds that a call sleeps; and whether it leaves out an element, which is faster and wrong.
TUNING = """
DEVICE = "cpu"
PARAMETERS = {"wait": (0, 20), "skip": (0, 1)}
CLASSES = {"elements": (1000, 100000)}


def key(x, **attributes):
    return {"elements": x.numel()}


def start(elements):
    return {"wait": 20 if elements <= 1000 else 0, "skip": 0}
"""
BENCHES = """

BENCHES = [
    Bench(
        f"f32-{count}",
        "a class of its own",
        lambda g, count=count: {"x": torch.randn(count, generator=g)},
        bytes=lambda a: 2 * nbytes(a["x"]),
        operations=lambda a: a["x"].numel(),
        devices=("cpu",),
    )
    for count in (512, 2000)
]
"""
HOST = """
  waiting::Tuning::Choose(params.element_count, [&](auto tuned) {
    constexpr int kWait = decltype(tuned)::kWait, kSkip = decltype(tuned)::kSkip;
    if (kWait > 0) std::this_thread::sleep_for(std::chrono::milliseconds(kWait));
    if (kSkip > 0 && begin == 0) begin = 1;
  });
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = made(tmp_path_factory.mktemp("tune"), "tuned-kernels")
    assert run(root, "new-op", OP, "(Tensor x) -> Tensor").returncode == 0
    folder = root / "kernels" / OP
    host = folder / f"{OP}_host.cc"
    text = host.read_text()
    begin = "Host(const Params& params, int64_t begin, int64_t end) {\n"
    assert begin in text
    headers = '#include <chrono>\n#include <thread>\n\n#include "waiting/tuning.h"\n'
    host.write_text(headers + text.replace(begin, begin + HOST))
    cases = folder / "cases.py"
    text = cases.read_text()
    cases.write_text(text[: text.index("BENCHES")].rstrip() + BENCHES)
    (folder / "tuning.py").write_text(TUNING)
    return root


@pytest.fixture(scope="module")
def tuned(repository, tmp_path_factory):
    """What the first run said and saved, with a table that began with its start."""
    started = run(repository, "tune", OP, "--start")
    assert started.returncode == 0, started.stderr
    first = (repository / "kernels" / OP / "tuning.h").read_text()
    saved = tmp_path_factory.mktemp("saved") / "run.json"
    result = run(repository, "tune", OP, *ROUNDS, "--json", str(saved))
    assert result.returncode == 0, result.stderr
    return first, result, json.loads(saved.read_text())


def record(repository) -> dict:
    return json.loads((repository / "kernels" / OP / "tuning.json").read_text())


def values(repository) -> dict:
    return {entry["class"]["elements"]: entry["values"] for entry in record(repository)["table"]}


def test_faster_variant_replaces_the_start(repository, tuned):
    first, result, _ = tuned
    assert "if (elements <= 1000) return body(Tuned<20, 0>{});" in first
    assert values(repository) == {largest: {"wait": 0, "skip": 0} for largest in (1000, 100000, None)}
    assert "return body(Tuned<0, 0>{});" in (repository / "kernels" / OP / "tuning.h").read_text()
    assert "elements <= 1000" in result.stdout and "wait=0 skip=0 (new)" in result.stdout
    assert "no bench, so not changed: elements > 100000: wait=0 skip=0" in result.stdout
    assert result.stdout.endswith("/tuning.h\n" + str(repository / "kernels" / OP / "tuning.json") + "\n")


def test_record_says_how_it_was_measured(repository, tuned):
    document, saved = record(repository), tuned[2]
    assert document["measured"]["device"] == saved["device"] and document["measured"]["date"] == saved["date"]
    small, large, other = document["table"]
    assert small["benches"] == ["f32-512"] and small["before"] == {"wait": 20, "skip": 0}
    assert small["runner_up"]["values"] == {"wait": 20, "skip": 0} and small["microseconds"] > 0
    assert small["runner_up"]["interval"][0] <= small["runner_up"]["ratio"] <= small["runner_up"]["interval"][1]
    assert large["benches"] == ["f32-2000"] and "before" not in large
    assert other.keys() == {"class", "values"}


def test_wrong_numbers_are_never_timed(tuned):
    _, result, saved = tuned
    for case in saved["cases"]:
        assert case["refused"].keys() == {"wait-0-skip-1", "wait-20-skip-1"}
        assert case["seconds"].keys() == {"table", "wait-0-skip-0", "wait-20-skip-0"}
        assert {len(samples) for samples in case["seconds"].values()} == {10}
    assert "tune: f32-512: wait-0-skip-1 is not timed: " in result.stderr and "values: expected" in result.stderr


def test_check_of_a_table_that_holds_and_of_one_that_does_not(repository, tuned):
    header, path = repository / "kernels" / OP / "tuning.h", repository / "kernels" / OP / "tuning.json"
    kept = header.read_text(), path.read_text()
    holds = run(repository, "tune", OP, "--check", *ROUNDS, "--noise", "100")
    assert holds.returncode == 0, holds.stderr
    assert (header.read_text(), path.read_text()) == kept

    assert run(repository, "tune", OP, "--start").returncode == 0
    fails = run(repository, "tune", OP, "--check", *ROUNDS)
    assert fails.returncode == 1
    said = "tune: --check: expected no variant faster than the table by more than 2%, got elements <= 1000: wait=0 "
    assert said in fails.stderr and f"hint: devtool tune {OP} writes a new table" in fails.stderr
    header.write_text(kept[0]), path.write_text(kept[1])


def test_check_of_another_header(repository, tuned):
    header = repository / "kernels" / OP / "tuning.h"
    kept = header.read_text()
    header.write_text(kept.replace("Tuned<0, 0>", "Tuned<20, 0>"))
    result = run(repository, "tune", OP, "--check")
    header.write_text(kept)
    assert result.returncode == 1
    assert f"tune: --check: expected {header} with the table of tuning.json, got another file or none" in result.stderr


def test_other_classes_keep_what_still_fits(repository, tuned):
    """A class that tuning.py no longer names is forgotten, and a new one gets the values of `start`."""
    folder = repository / "kernels" / OP
    kept = {path: path.read_text() for path in (folder / "tuning.py", folder / "tuning.json", folder / "tuning.h")}
    (folder / "tuning.py").write_text(TUNING.replace("(1000, 100000)", "(500, 1000)"))
    code = "from devtool.tune.record import read_table\nfrom devtool.tune.space import read_space\n"
    code += f"print(read_table(read_space('{OP}')))"
    result = python(repository, code)
    for path, text in kept.items():
        path.write_text(text)
    assert result.stdout.strip() == "{(500,): (20, 0), (1000,): (0, 0), (None,): (0, 0)}", result.stderr


def python(root, code: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, cwd=root, env=environment(), capture_output=True, text=True, check=False)


def test_variant_that_does_not_build(repository, tuned):
    """The record of the last run stays; a header that is not its table's is written again before the build."""
    folder = repository / "kernels" / OP
    host, header, path = folder / f"{OP}_host.cc", folder / "tuning.h", folder / "tuning.json"
    kept, tables = host.read_text(), (header.read_text(), path.read_text())
    header.write_text("another")
    refused = 'static_assert(decltype(tuned)::kSkip == 0, "none");\n'
    host.write_text(kept.replace("    constexpr int kWait", f"    {refused}    constexpr int kWait"))
    result = run(repository, "tune", OP, *ROUNDS)
    host.write_text(kept)
    assert result.returncode == 1
    assert "expected every variant to build, got an error with wait-" in result.stderr and "none" in result.stderr
    assert f"def allowed(...) in kernels/{OP}/tuning.py" in result.stderr
    assert (header.read_text(), path.read_text()) == tables


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_builds(repository, number):
    """SIGINT goes to the group, as from Ctrl-C; SIGTERM to devtool alone. The compilers wait for a pipe's writer."""
    folder = repository / "kernels" / OP
    host, pipe = folder / f"{OP}_host.cc", folder / "pipe.inc"
    kept = host.read_text()
    host.write_text(f'#include "{OP}/pipe.inc"\n{kept}')
    os.mkfifo(pipe)
    command = [sys.executable, "-P", "-m", "devtool", "tune", OP]
    child = subprocess.Popen(
        command, cwd=repository, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        process_group=0,
    )  # fmt: skip
    with pipe.open("w"):  # returns when a compiler reads
        os.killpg(child.pid, number) if number == signal.SIGINT else child.send_signal(number)
        stderr = child.communicate(timeout=30)[1]
    pipe.unlink()
    host.write_text(kept)
    assert child.returncode == 130 and stderr.endswith("devtool: interrupted\n")
    assert "Traceback" not in stderr
    assert processes_in(repository) == []


def test_no_bench_for_the_device(repository, tuned):
    cases = repository / "kernels" / OP / "cases.py"
    kept = cases.read_text()
    cases.write_text(kept.replace('devices=("cpu",)', 'devices=("cuda",)'))
    result = run(repository, "tune", OP, *ROUNDS)
    cases.write_text(kept)
    assert result.returncode == 1
    assert f"tune: {OP}: expected a bench for cpu in kernels/{OP}/cases.py, got none" in result.stderr
