"""`devtool fuzz` finds what is wrong in a handler, makes it small, and tries it first in the next call."""

import json
import os
import re
import signal
import time

import pytest

from devtool.errors import DevtoolError
from devtool.testing import fuzz
from tests.devtool_tree import Tree

# Mistakes in simple_add's loop, which only some sizes or values show -> what fuzz says of it, and the elements of `a`.
MISTAKES = {
    # Thirty-two elements are right.
    "wrong after 32 elements": ("if (i == 32) out_data[i] = a_data[i];", "wrong numbers", 33),
    "crash after 16 elements": ("if (i == 16) __builtin_trap();", "crashed (SIGILL)", 17),
    "writes an operand": ("if (i == 16) const_cast<T*>(b_data)[0] = a_data[1];", "an operand was changed", 17),
}
# The last line of the loop; the mistakes come after it.
LINE = "out_data[i] = pyxla::FromFloat<T>(pyxla::ToFloat(a_data[i]) + scale * pyxla::ToFloat(b_data[i]));"
OPS_OF = {"norm": ["norm"], "norm_triton": ["norm.triton"], "rotary": ["rotary", "rotary_inplace"]}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = Tree(tmp_path_factory.mktemp("fuzz"))
    tree.run("build", "simple_add")
    return tree


@pytest.fixture
def source(tree):
    path = tree.kernels / "simple_add/simple_add_ffi.cc"
    before = path.read_text()
    yield path
    path.write_text(before)


def test_all_is_right(tree):
    result = tree.run("fuzz", "simple_add", "--calls", "300", "--device", "cpu")
    assert result.returncode == 0, result.stderr
    found = re.fullmatch(
        r"simple_add: 300 calls in \d+ s, \d+ calls/s, seed 0: (\d+) right, (\d+) refused\n", result.stdout
    )
    # A refused input is one call, and the others four.
    assert found and int(found[1]) > 150 and int(found[2]) > 5
    assert tree.run("fuzz", "simple_add", "--calls", "300", "--device", "cpu").stdout.endswith(
        f": {found[1]} right, {found[2]} refused\n"
    )


def test_processes_share_the_calls(tree, source):
    """Each has rounds of its own; a crash in one of them ends the others, and its input is found."""
    result = tree.run("fuzz", "simple_add", "--calls", "301", "--device", "cpu", "-n", "2")
    assert result.returncode == 0, result.stderr
    assert re.match(r"simple_add: 301 calls in \d+ s, \d+ calls/s, seed 0: ", result.stdout), result.stdout
    printed = find(tree, source, MISTAKES["crash after 16 elements"][0], "--calls", "1000000", "-n", "2")
    calls = re.search(r"^simple_add: (\d+) calls in ", printed, re.MULTILINE)
    assert calls and int(calls[1]) < 100000 and "crashed (SIGILL)" in printed, printed


def test_seconds_end_within_a_round(tree):
    """A round is some 2000 calls, which take minutes under memcheck."""
    result = tree.run("fuzz", "simple_add", "--seconds", "0.1", "--device", "cpu")
    found = re.match(r"simple_add: (\d+) calls in ", result.stdout)
    assert found and int(found[1]) < 1000, result.stdout


def test_an_interrupted_run_says_what_it_did(tree, tmp_path):
    child = tree.start("fuzz", "simple_add", "--calls", "1000000", "--device", "cpu", TMPDIR=str(tmp_path))
    try:
        deadline = time.monotonic() + 60
        while not any(json.loads(path.read_text())["counts"] for path in tmp_path.glob("*/state-0")):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        os.killpg(child.pid, signal.SIGINT)
        printed, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    found = re.search(r"^simple_add: (\d+) calls in \d+ s, .*right", printed, re.MULTILINE)
    assert found and 0 < int(found[1]) < 1000000 and child.returncode


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_and_made_small(tree, source, name):
    code, said, elements = MISTAKES[name]
    printed = find(tree, source, code)
    assert re.search(rf"^simple_add: .*{re.escape(said)}", printed, re.MULTILINE), printed
    shape = re.search(r"'a': .*?(?:reshape|full)\(\((\d*)", case_in(printed))
    assert shape and int(shape[1] or 1) <= elements, printed


def test_a_mistake_is_kept_and_its_case_fails(tree, source):
    """The next call tries it first, whatever its seed; and the case that is printed fails in cases.py."""
    printed = find(tree, source, MISTAKES["wrong after 32 elements"][0])
    # One input: without the kept one it is the smallest of all, which is right.
    again = tree.run("fuzz", "simple_add", "--calls", "4", "--device", "cpu", "--seed", "5").stdout
    assert "simple_add: wrong numbers: " in again, again

    cases = tree.kernels / "simple_add/cases.py"
    before = cases.read_text()
    cases.write_text(before.replace("CASES = [", f"CASES = [\n{case_in(printed)}", 1))
    try:
        result = tree.run("test", "simple_add", "--raw", "--device", "cpu", "--", "-k", "fuzz")
        assert result.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped", result.stdout
    finally:
        cases.write_text(before)


def find(tree, source, code: str, *options: str) -> str:
    """What fuzz says with this code in the loop."""
    source.write_text(source.read_text().replace(LINE, f"{LINE}\n        {code}", 1))
    result = tree.run("fuzz", "simple_add", "--calls", "4000", "--device", "cpu", *options)
    assert result.returncode == 1, result.stderr
    return result.stdout


def case_in(printed: str) -> str:
    return printed[printed.index("    Case(") :]


@pytest.mark.slow  # builds with sanitizers
def test_sanitizer_finds_a_read_past_the_end(tree, source):
    """The numbers are right: only the sanitizer sees it."""
    read = "if (a.element_count() == 0) return;\n"
    read += "    [[maybe_unused]] const volatile float past = pyxla::ToFloat(a_data[a.element_count()]);"
    text = source.read_text().replace("const float scale", f"{read}\n    const float scale", 1)
    source.write_text(text)
    result = tree.run("fuzz", "simple_add", "--calls", "100", "--device", "cpu", "--sanitize")
    assert result.returncode == 1 and "AddressSanitizer: heap-buffer-overflow" in result.stdout, result.stdout


@pytest.mark.parametrize(
    ("names", "ops"),
    [
        ([], ["norm", "norm.triton", "rotary", "rotary_inplace"]),
        (["rotary"], ["rotary", "rotary_inplace"]),
        (["rotary_inplace", "norm"], ["rotary_inplace", "norm", "norm.triton"]),
        (["norm.triton"], ["norm.triton"]),
        (["norm_triton", "norm.triton"], ["norm.triton"]),
    ],
)
def test_a_folder_is_all_its_ops_and_an_op_itself_alone(monkeypatch, names, ops):
    monkeypatch.setattr(
        fuzz.project, "with_implementations", lambda folders: [f for f in OPS_OF if f.startswith(folders[0])]
    )
    assert fuzz._named(names, OPS_OF) == ops


@pytest.mark.parametrize("length", [4000, 4001])
def test_a_long_case_is_in_a_file(tmp_path, capsys, length):
    code = "c" * length
    fuzz._echo_found("norm", {"kind": "wrong numbers", "problem": "1 of 2 differ", "code": code}, tmp_path)
    path = tmp_path / "norm.case.py"
    shown = code if length <= 4000 else f"norm: the case: {path}"
    assert capsys.readouterr().out == f"norm: wrong numbers: 1 of 2 differ\n{shown}\n"
    assert path.exists() is (length > 4000) and (not path.exists() or path.read_text() == code + "\n")


def test_a_function_that_is_no_op():
    with pytest.raises(DevtoolError, match=re.escape("fuzz: OP: expected an op (norm, norm.triton, ")):
        fuzz._named(["backward"], OPS_OF)


def test_wrong_arguments(tree):
    unknown = tree.run("fuzz", "simple_sub")
    assert unknown.returncode == 2 and unknown.stderr.startswith("fuzz: OP: expected a folder of kernels/ (simple_add)")
    assert tree.run("fuzz", "--calls", "0").returncode == 2
