"""`devtool test`: what it preloads and reports, and what it says if the tests crash."""

import json
import os
import re
import signal
import time

import pytest

from devtool.building import build
from devtool.building.build import Options
from devtool.errors import DevtoolError
from devtool.testing import run
from devtool.testing.table import COLUMNS, print_table
from tests.devtool_tree import Tree

PRELOADED = """
import os
from pathlib import Path

def test_library_is_mapped_before_anything_asks_for_it():
    assert "/libtiny.so" in os.environ["LD_PRELOAD"]
    assert "/libtiny.so" in Path("/proc/self/maps").read_text()
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = Tree(tmp_path_factory.mktemp("test"))
    tree.tiny_op("tiny")
    return tree


def write_test(tree: Tree, text: str) -> None:
    (tree.kernels / "tiny/test_tiny.py").write_text(text)


def test_library_is_preloaded(tree):
    write_test(tree, PRELOADED)
    result = tree.run("test", "tiny")
    assert result.returncode == 0, result.stdout
    assert result.stderr.startswith("build: built tiny in ")
    assert result.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"


def test_outcomes_are_counted_once(tree):
    write_test(
        tree,
        "import pytest\n"
        "@pytest.fixture\n"
        "def broken():\n    raise ValueError\n"
        "@pytest.fixture\n"
        "def breaks_later():\n    yield\n    raise ValueError\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert 0\n"
        "def test_cannot_start(broken): pass\n"
        "def test_cannot_end(breaks_later): pass\n"
        "@pytest.mark.skip\ndef test_skipped(): pass\n"
        "@pytest.mark.xfail\ndef test_known_to_fail(): assert 0\n",
    )
    result = tree.run("test", "tiny")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "1 passed, 3 failed, 2 skipped"
    assert re.search(r"^=+ 2 failed, 2 passed, 1 skipped, 1 xfailed, 2 errors? in", result.stdout, re.MULTILINE) or (
        re.search(r"^=+ .*1 failed.*2 errors.* =+$", result.stdout, re.MULTILINE)
    )


def test_test_file_that_does_not_import_fails(tree):
    write_test(tree, "import no_such_module\n")
    result = tree.run("test", "tiny")
    assert result.returncode == 1
    assert "No module named 'no_such_module'" in result.stdout
    assert result.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (["-k", "nothing"], 1, "test: pytest: expected a test, got none", "leave out -k or -m"),
        (["--nope"], 2, "test: pytest rejected its arguments", "pytest --help"),
    ],
)
def test_arguments_that_select_nothing_or_are_none(tree, arguments, code, message, hint):
    write_test(tree, "def test_passes(): pass\n")
    result = tree.run("test", "tiny", "--", *arguments)
    assert result.returncode == code
    assert message in result.stderr and f"\n\nhint: {hint}" in result.stderr


def test_arguments_for_pytest_need_no_op():
    from click.testing import CliRunner

    from devtool.cli import cli

    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run_tests", lambda *arguments, **_: seen.append(arguments) or 0)
        result = CliRunner().invoke(cli, ["test", "--device", "cpu", "--", "-k", "x", "--", "y"])
    assert result.exit_code == 0, result.output
    ((ops, device, _, arguments),) = seen
    assert (ops, device, arguments) == ((), "cpu", ["-k", "x", "--", "y"])


@pytest.mark.slow
@pytest.mark.parametrize(("options", "raw"), [([], False), (["--raw"], True)])
def test_files_for_pytest_take_the_place_of_all_tests(tree, options, raw):
    """Without OP and files, all tests run: the project's and those of two ops; with --raw only those of the ops."""
    write_test(tree, RAW.replace("assert 0", "pass"))
    other = tree.root / "tests/test_other.py"
    other.parent.mkdir(exist_ok=True)
    other.write_text("def test_of_the_project(): pass\n")
    named = tree.run("test", "--device", "cpu", *options, "--", "kernels/tiny/test_tiny.py")
    assert named.stdout.splitlines()[-1] == f"{1 if raw else 3} passed, 0 failed, 0 skipped"
    everything = tree.run("test", "--device", "cpu", "-n", "1", *options)  # the message that names the files
    # simple_add's tests on XLA need a larger checkout.
    files = ["tests/test_other.py", "kernels/simple_add/test_simple_add.py", "kernels/tiny/test_tiny.py"]
    assert [file for file in files if f"\n{file} " in everything.stdout] == files[1 if raw else 0 :]


RAW = """
import pytest
from pyxla.testing import check_cpu, check_raw

@pytest.mark.parametrize("check", [check_raw, check_cpu])
def test_op(check): pass

def test_other(): assert 0
"""


def test_raw_makes_the_raw_calls_and_nothing_else(tree):
    write_test(tree, RAW)
    result = tree.run("test", "tiny", "--device", "cpu", "--raw")
    assert result.returncode == 0, result.stdout
    assert result.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"


def test_tests_of_an_op_on_the_cpu_compile_no_cuda_code_of_their_own_accord(tree):
    """A CUDA compiler that is named but missing would stop every build that needs it."""
    wanted = {"PYXLA_CUDA": "auto", "CUDACXX": "/no/such/nvcc"}
    write_test(tree, "def test_it(): pass")
    named, everything = (tree.run("test", "--device", "cpu", *op, **wanted) for op in (["tiny"], []))
    assert named.returncode == 0, named.stderr
    assert everything.returncode == 1 and "/no/such/nvcc" in everything.stderr


@pytest.mark.parametrize(("before", "after"), [(None, "off"), ("off", "off"), ("auto", "auto"), ("on", "on")])
def test_tests_on_the_cpu_keep_the_cuda_code_of_an_earlier_build(monkeypatch, tmp_path, before, after):
    monkeypatch.setattr(build.project, "build_folder", lambda sanitize: tmp_path)
    monkeypatch.setattr(build, "run_lines", lambda *arguments: 0)  # CMake
    if before:
        build._configure(tmp_path, Options(before))
    assert build.for_cpu(Options()) == Options(after)
    assert build.for_cpu(Options("on")) == Options("on") and build.for_cpu(Options("off")) == Options("off")


def test_gpu_sanitizer_on_the_cpu(tree):
    result = tree.run("test", "tiny", "--device", "cpu", "--sanitize", "memcheck")
    assert result.returncode == 2
    assert result.stderr.startswith(
        "test: --sanitize: expected --device cuda with memcheck, got --device cpu\n\nhint: "
    )


def test_gpu_sanitizer_that_is_not_installed(tree, monkeypatch):
    monkeypatch.setattr(run, "locate", lambda tool: None)
    monkeypatch.setattr(run.shutil, "which", lambda tool, path: None)
    with pytest.raises(DevtoolError, match="test: --sanitize: expected compute-sanitizer, got none on PATH"):
        run.run_tests(["simple_add"], "cuda", Options(), [], gpu_sanitizer="racecheck")


def test_op_without_a_test_file(tree):
    (tree.kernels / "tiny/test_tiny.py").unlink(missing_ok=True)
    result = tree.run("test", "tiny")
    assert result.returncode == 1
    assert result.stderr == (
        "test: tiny: expected kernels/tiny/test_tiny.py, got no test file\n\n"
        "hint: copy kernels/simple_add/test_simple_add.py and adapt it\n"
    )


def test_crash_is_named(tree):
    write_test(tree, "import os, signal\ndef test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)\n")
    result = tree.run("test", "tiny")
    assert result.returncode == 1
    assert "test: pytest crashed (SIGSEGV) before its end\n\nhint: devtool test tiny --sanitize address" in (
        result.stderr
    )


def test_crash_behind_the_last_test_is_named(tree):
    """A write out of bounds may cause the crash only when the process ends."""
    write_test(tree, "import atexit, os\natexit.register(os.abort)\ndef test_passes(): pass\n")
    result = tree.run("test", "tiny")
    assert result.returncode == 1
    assert "test: pytest crashed (SIGABRT) before its end\n\nhint: devtool test tiny" in result.stderr
    record = json.loads((tree.root / "build/records/test/tiny-cpu.json").read_text())
    assert record["ended"] == "signal 6" and record["outcomes"] == {"test_tiny.py::test_passes": "passed"}


def test_failed_build_runs_no_test(tree):
    write_test(tree, PRELOADED)
    tree.tiny_op("tiny", "int answer() { return nonsense; }\n")
    result = tree.run("test", "tiny")
    tree.tiny_op("tiny")
    assert (result.returncode, result.stdout) == (1, "")
    assert "build: tiny: expected it to build, got errors in tiny/tiny_ffi.cc" in result.stderr


@pytest.mark.parametrize("to", ["devtool", "group"])
def test_interrupt(tree, to):
    """Ctrl-C reaches devtool and pytest; `kill` reaches only devtool."""
    started = tree.root / "started"
    started.unlink(missing_ok=True)
    write_test(
        tree,
        f"import time, pathlib\ndef test_waits():\n    pathlib.Path({str(started)!r}).touch()\n    time.sleep(60)\n",
    )
    child = tree.start("test", "tiny")
    deadline = time.monotonic() + 60
    while not started.exists():
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGINT) if to == "devtool" else os.killpg(child.pid, signal.SIGINT)
    stdout, stderr = child.communicate(timeout=30)
    assert child.returncode == 130 and stderr.endswith("devtool: interrupted\n")
    assert "KeyboardInterrupt" in stdout


def test_hint_of_a_sanitizer_points_at_its_report():
    with pytest.raises(DevtoolError, match="hint: the sanitizer's report is above"):
        run._require_results(1, None, ["tiny"], Options(sanitize="address"))


@pytest.mark.slow
def test_write_past_the_end_is_found(tree):
    """One element too far: accesses to XLA's buffers are checked to the byte."""
    assert tree.run("new-op", "too_far").returncode == 0
    source = tree.kernels / "too_far/too_far_host.cc"
    text = source.read_text()
    source.write_text(text.replace("out[i] = ", "out[i + 1] = "))
    result = tree.run("test", "too_far", "--sanitize", "address", "--", "-k", "check_lazy and f32-3x5")
    assert result.returncode == 1
    line = text[: text.index("out[i] = ")].count("\n") + 1
    assert f"SUMMARY: AddressSanitizer: heap-buffer-overflow too_far/too_far_host.cc:{line} in" in result.stderr
    assert "test: pytest failed (exit status 1) before its end" in result.stderr


def test_table_fits_80_columns_and_cuts_no_word(capsys, monkeypatch):
    """Checked with the longest name of an op or implementation in this checkout."""
    monkeypatch.setenv("COLUMNS", "80")
    names = ["fused_decoder_layer_rotary", "paged_attention.flashinfer"]
    kept = {"case": "a", "ok": True, "share": 1.0, "recompiles": 0}
    print_table([{"op": name, "check": check} | kept for name in names for check in COLUMNS.values()])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith(tuple(names))]
    assert rows == [[name, "1", *["ok"] * 6, "100%", "0"] for name in names]


def test_table_with_many_failures_cuts_nothing_either(capsys, monkeypatch):
    """It may be wider than the terminal: a name in pieces of three letters was unreadable."""
    monkeypatch.setenv("COLUMNS", "80")
    failed = {"op": "fused_decoder_layer_rotary", "ok": False}
    print_table([{"check": check, "case": str(case)} | failed for check in COLUMNS.values() for case in range(13)])
    shown = capsys.readouterr().out
    (row,) = [line.split() for line in shown.splitlines() if line.startswith("fused")]
    assert row == ["fused_decoder_layer_rotary", "13", *["13", "FAILED"] * 6, "-", "-"]
