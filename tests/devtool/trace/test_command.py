"""`devtool trace` on real scripts, on XLA's CPU: its report, with source lines; the scripts behave as without it."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.trace_scripts import CLEAN, SCRIPT


def environment(device: str = "CPU") -> dict[str, str]:
    ours = ("LD_PRELOAD", "XLA_FLAGS", "TORCH_TRACE")
    return {name: value for name, value in os.environ.items() if name not in ours} | {"PJRT_DEVICE": device}


def run(folder: Path, *words: str, device: str = "CPU") -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment(device), capture_output=True, text=True)


def trace(folder: Path, *words: str, device: str = "CPU") -> subprocess.CompletedProcess:
    return run(folder, "-P", "-m", "devtool", "trace", *words, device=device)


def written(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


class Traced:
    """A traced script: its output, the report, and the lines of its marks."""

    def __init__(self, folder: Path, text: str, *arguments: str, options: tuple[str, ...] = (), device: str = "CPU"):
        self.script = written(folder, text)
        self.done = trace(folder, "--json", "report.json", *options, "script.py", *arguments, device=device)
        self.report = json.loads((folder / "report.json").read_text())

    def line(self, mark: str) -> int:
        (number,) = [n for n, line in enumerate(self.script.read_text().splitlines(), 1) if line.endswith(f"# {mark}")]
        return number

    def at(self, kind: str, mark: str) -> list[dict]:
        """The entries of this kind at the marked line of the script."""
        entries = [entry for entry in self.report[kind] if entry["place"] and entry["place"]["line"] == self.line(mark)]
        assert all(entry["place"]["file"] == str(self.script) for entry in entries)
        return entries

    def changes(self, mark: str) -> list[list[dict]]:
        """The changes, for each compilation at the marked line except the first."""
        (graph,) = self.at("graphs", mark)
        return [compilation["changes"] for compilation in graph["compilations"] if not compilation["first"]]

    def advice(self, kind: str) -> list[int]:
        return [entry["place"]["line"] for entry in self.report["advice"] if entry["kind"] == kind]


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    options = ("--metrics", "--ir")
    return Traced(tmp_path_factory.mktemp("trace"), SCRIPT, "one", "--json", "two", options=options)


def test_the_script_runs_as_without_trace(traced):
    """The same arguments, output, exit status, and counts of compilations, executions, frames and graph breaks."""
    plain = run(traced.script.parent, "script.py", "one", "--json", "two")
    assert re.search(r"\['one', '--json', 'two'\] \d+ \d+\n$", plain.stdout)
    assert traced.done.stdout == plain.stdout
    assert traced.done.returncode == plain.returncode == traced.report["exit_status"] == 7
    compilations, executions = map(int, plain.stdout.split()[-2:])
    totals = traced.report["totals"]
    assert (totals["compilations"], totals["executions"]) == (compilations, executions)
    assert totals["cache_hits"] > 0 and totals["cache_hits"] == executions - compilations


def test_recompilation_by_a_changed_shape(traced):
    found = traced.changes("shape: sync")
    assert [[(c["kind"], c["before"], c["after"]) for c in changed] for changed in found] == [
        [("parameter", "f32[4]", "f32[5]")],
        [("parameter", "f32[5]", "f32[6]")],
    ]
    assert {changed[0]["place"]["line"] for changed in found} == {traced.line("shape: made")}
    assert traced.line("shape: made") in traced.advice("recompilation")


def test_recompilation_by_a_changed_constant(traced):
    ((changed,),) = traced.changes("constant: sync")
    assert (changed["kind"], changed["before"], changed["after"]) == ("constant", "0", "1")
    assert changed["place"]["line"] == traced.line("constant: made")


def test_recompilation_by_a_changed_attribute_of_an_op(traced):
    ((changed,),) = traced.changes("attribute: sync")
    assert changed["what"] == "attribute of xla_gpu_simple_add"
    assert changed["before"].startswith("alpha = 5.0") and changed["after"].startswith("alpha = 1.5")
    assert changed["place"]["line"] == traced.line("attribute: made")
    assert traced.report["custom_calls"] == {"targets": {"xla_gpu_simple_add": 2}, "captured": None, "compiled": None}


ONE_CALL = """
import torch, torch_xla
for size in (4, 5):
    x = torch.ones(size).to(torch_xla.device())
    y = torch.ops.xla_gpu.simple_add(x, x)  # made
    torch_xla.sync()  # sync
"""


def test_recompilation_of_a_graph_of_one_custom_call(tmp_path):
    """XLA knows the line of the call only as one of pyxla's: the report names the only line that calls the op."""
    traced = Traced(tmp_path, ONE_CALL)
    ((changed,),) = traced.changes("sync")
    assert (changed["what"], changed["before"], changed["after"]) == ("parameter 0", "f32[4]", "f32[5]")
    assert changed["place"]["line"] == traced.line("made")
    assert re.search(r"f32\[4\] -> f32\[5\] +script\.py:5\b", traced.done.stderr)


def test_recompilation_by_a_changed_index(traced):
    found = traced.changes("index: sync")
    assert [(c["before"], c["after"]) for (c,) in found] == [
        ("slice={[0:2]}", "slice={[1:3]}"),
        ("slice={[1:3]}", "slice={[2:4]}"),
    ]
    assert traced.line("index: made") in traced.advice("recompilation")


def test_reads_on_the_host(traced):
    def read(mark: str) -> tuple:
        (entry,) = traced.at("host_reads", mark)
        return entry["by"], entry["count"], entry["ran_graph"]

    assert read("item") == ("item", 4, 4)
    assert read("float") == ("__float__", 3, 0)
    assert read("print") == ("__repr__", 1, 1)
    lines = traced.advice("host read")
    assert traced.line("item") in lines and traced.line("float") in lines and traced.line("print") not in lines


def test_an_op_on_the_cpu(traced):
    (entry,) = traced.report["fallbacks"]
    assert (entry["op"], entry["count"]) == ("aten::linalg_eig", 1)
    assert [place["line"] for place in entry["places"]] == [traced.line("fallback")]
    assert traced.advice("fallback") == [traced.line("fallback")]
    # The copy to the host that it makes is not a read by the script.
    assert traced.at("host_reads", "fallback") == []


def test_a_graph_break(traced):
    """It is reported once per compilation: dynamo compiles the function again for the second shape, and says why."""
    (entry,) = traced.at("graph_breaks", "break")
    assert entry["count"] == 2 and "print" in entry["place"]["source"]
    (item,) = traced.at("graph_breaks", "item in a compiled function")
    assert item["count"] == 2 and "Tensor.item()" in item["reason"]
    reasons = [entry["reason"] for entry in traced.report["dynamo_recompilations"]]
    assert "tensor 'x' size mismatch at index 0. expected 4, actual 7" in reasons
    assert traced.advice("graph break") == [traced.line("break"), traced.line("item in a compiled function")]


def test_advice_on_loops(traced):
    assert traced.advice("growing graph") == [traced.line("growing")]
    assert traced.advice("unrolled loop") == [traced.line("unrolled")]
    assert traced.advice("wait") == [traced.line("wait")]
    assert traced.advice("small graphs") == [traced.line("wait")]
    (entry,) = traced.at("syncs", "wait")
    assert (entry["kind"], entry["count"]) == ("sync wait", 7) and entry["seconds"] > 0


def test_times(traced):
    (graph,) = traced.at("graphs", "shape: sync")
    assert graph["compile_seconds"] > graph["execute_seconds"] > 0
    total = traced.report["time"]["CompileTime"]["seconds"]
    assert sum(graph["compile_seconds"] for graph in traced.report["graphs"]) == pytest.approx(total)


def test_times_per_op(traced):
    """The report counts the script's calls; the profile adds neither compilations nor executions."""
    times = traced.report["device_time"]
    calls = {entry["op"]: entry["calls"] for entry in times["ops"]}
    assert calls["simple_add"] == 2 and calls["the rest of XLA"] > 20
    assert sum(entry["share"] for entry in times["ops"]) == pytest.approx(1) and 0 < times["busy"] < 1
    assert sum(entry["seconds"] for entry in times["ops"]) == pytest.approx(times["seconds"])
    assert re.search(r"\n simple_add +2 +\d+\.\d{3} +\d+\.\d%", traced.done.stderr)
    assert "\nthe device was busy " in traced.done.stderr
    assert traced.report["notes"] == []


def test_ir_and_metrics_on_request(traced):
    assert "aten::sin" in traced.done.stderr and any("aten::sin" in graph["text"] for graph in traced.report["ir"])
    assert re.search(r"^ UncachedCompile: \d+$", traced.done.stderr, re.MULTILINE)


def test_the_report_is_on_stderr(traced):
    shown = traced.done.stderr
    assert f"script.py:{traced.line('item')} .item()" in shown
    assert "parameter 1: f32[4] -> f32[5]" in shown
    advice = shown.partition("\nadvice\n")[2]
    assert f" script.py:{traced.line('growing')}: the graph grew from" in advice


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return Traced(tmp_path_factory.mktemp("clean"), CLEAN)


def test_a_clean_loop_gets_no_advice(clean):
    assert clean.done.returncode == 0
    assert clean.report["advice"] == [] and "\nadvice: none\n" in clean.done.stderr
    assert clean.report["totals"]["cache_hits"] >= 6
    assert clean.report["ir"] == []


def test_a_script_that_raises(tmp_path):
    """Its traceback is the same as without trace, although a replaced method is in between; the report follows it."""
    script = """
        import torch
        import torch_xla

        x = torch.ones(3).to(torch_xla.device()) * 2

        def number(tensor):
            torch_xla.sync()
            return float(tensor)

        number(x)
    """
    written(tmp_path, script)
    plain, traced = run(tmp_path, "script.py"), trace(tmp_path, "--json", "-", "script.py")
    assert plain.returncode == traced.returncode == 1
    assert plain.stderr.startswith("Traceback") and "line 9, in number" in plain.stderr
    assert traced.stderr.startswith(plain.stderr)
    assert "trace: script.py on CPU\n1 compilation, 1 execution" in traced.stderr
    assert json.loads(traced.stdout)["exit_status"] == 1


def test_a_script_that_is_killed(tmp_path):
    written(
        tmp_path,
        """
        import os, signal
        import torch
        import torch_xla

        x = torch.ones(3).to(torch_xla.device()) * 2
        torch_xla.sync(wait=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    result = trace(tmp_path, "script.py")
    assert result.returncode == 128 + signal.SIGKILL
    assert "1 compilation, 1 execution" in result.stderr and "note: the process left no record" in result.stderr
    assert "trace: script.py: the script was killed (SIGKILL)\n\nhint: " in result.stderr


@pytest.mark.parametrize(
    ("text", "status", "printed"),
    [("print('x', end='')", 1, ""), ("import sys; print('x', end=''); sys.exit(3)", 3, "")],
    ids=["ends", "exits"],
)
def test_a_script_that_never_touches_xla(tmp_path, text, status, printed):
    written(tmp_path, text)
    result = trace(tmp_path, "script.py")
    assert (result.returncode, result.stdout) == (status, "x")
    assert result.stderr == (
        "trace: script.py: expected a computation on XLA, got none\n\n"
        "hint: tensors are XLA's if they are on device=torch_xla.device()\n"
    )


def test_a_syntax_error(tmp_path):
    written(tmp_path, "def (:\n")
    plain, traced = run(tmp_path, "script.py"), trace(tmp_path, "script.py")
    assert traced.returncode == plain.returncode == 1
    assert plain.stderr.endswith("SyntaxError: invalid syntax\n") and traced.stderr.startswith(plain.stderr)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.py"], "trace: SCRIPT: expected a Python file, got none at none.py"),
        (["--nope", "script.py"], "devtool trace: arguments: expected those in its help, got: No such option"),
        (["."], "trace: SCRIPT: expected a Python file, got a folder at ."),
        (["--json", "none/x.json", "script.py"], "trace: --json: expected a file in a folder that exists, got none/x"),
    ],
)
def test_misuse(tmp_path, words, message):
    written(tmp_path, "print('ran')")
    result = trace(tmp_path, *words)
    assert result.returncode == 2 and result.stdout == "" and result.stderr.startswith(message)
