"""`devtool bench --against`: an op beside itself, at a revision or with other flags; no test looks at a time."""

import json
import math
import random
import subprocess

import pytest

from devtool.bench.compare import paired_shift
from tests.devtool_tree import Tree

OP = "doubled"
RUN = ("--device", "cpu", "--layer", "raw", "--rounds", "12")

# Calls an op that only devtool builds.
STEP = """
from pyxla.benchmark import Step


def step(x, **others):
    return torch.ops.xla_gpu.simple_add(torch.ops.xla_gpu.doubled(x, **others), x, 0.5)


STEPS = [Step("step", "two ops", BENCHES[1].build, step, BENCHES[1].bytes, BENCHES[1].operations, ("simple_add",))]
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A repository whose op is wrong with -DWRONG, in a branch without it, and was another one at the tag `other`."""
    tree = Tree(tmp_path_factory.mktemp("against"))
    git(tree, "init", "--quiet")
    commit(tree, "empty")
    git(tree, "tag", "empty")
    tree.new_op(OP)
    commit(tree, "op")
    host = tree.kernels / OP / f"{OP}_host.cc"
    text = host.read_text()
    assert "factor * blend)" in text
    host.write_text(text.replace("factor * blend)", "factor * blend WRONG_TERM)", 1) + "\n")
    cases = tree.kernels / OP / "cases.py"
    cases.write_text(cases.read_text() + STEP)
    host.write_text("#ifdef WRONG\n#define WRONG_TERM + 1\n#else\n#define WRONG_TERM\n#endif\n" + host.read_text())
    return tree


def git(tree, *arguments):
    command = ["git", "-C", str(tree.root), "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def commit(tree, message):
    git(tree, "add", "--force", "kernels", "pyxla", "pyproject.toml")
    git(tree, "commit", "--quiet", "--message", message)


def test_op_and_its_revision_take_turns(tree):
    saved = tree.root / "run.json"
    result = tree.run("bench", OP, *RUN, "--against", "HEAD", "--fail-above", "1e9", "--json", str(saved))
    assert result.returncode == 0, result.stderr
    assert "against HEAD, in the same run" in result.stdout
    case = json.loads(saved.read_text())["cases"][0]
    names = [layer["name"] for layer in case["layers"]]
    assert names == ["raw", "HEAD raw", "raw step", "HEAD raw step"] and case["against"] == "HEAD"
    assert {len(layer["seconds"]) for layer in case["layers"]} == {12}
    table = result.stdout[result.stdout.index("against HEAD") :]
    assert [line.split()[-9:-7] for line in table.splitlines() if " us " in line or " ms " in line]

    again = tree.run("bench", OP, *RUN, "--against", "HEAD", "--fail-above", "1e-9")
    assert again.stderr.startswith("build: HEAD\nbuild: nothing to do\n")
    assert again.returncode == 1 and "expected at most 1e-09 times the time of HEAD, got" in again.stderr


def test_step_with_the_library_of_either_revision(tree):
    saved = tree.root / "step.json"
    step = ("--device", "cpu", "--case", "step", "--layer", "xla", "--rounds", "6")
    result = tree.run("bench", OP, *step, "--against", "HEAD", "--fail-above", "1e9", "--json", str(saved))
    assert result.returncode == 0, result.stderr
    (case,) = json.loads(saved.read_text())["cases"]
    assert [layer["name"] for layer in case["layers"]] == ["xla step", "HEAD xla step"]
    assert {len(layer["seconds"]) for layer in case["layers"]} == {6}
    table = result.stdout[result.stdout.index("against HEAD") :]
    assert f"{OP} step xla step" in " ".join(table.split())
    assert tree.library("simple_add").exists()

    wrong = tree.run("bench", OP, *step, "--against", "-DWRONG")
    assert wrong.returncode == 1 and "got no case that both take" in wrong.stderr, wrong.stderr
    said = " ".join(wrong.stdout.split())
    assert "not timed: -DWRONG xla step (1 of 1 cases): step: result 0: expected float64's, got" in said


def test_flags_reach_the_compiler(tree):
    """With -DWRONG the op is wrong, so it is not timed, and there is nothing to compare."""
    result = tree.run("bench", OP, *RUN, "--against", "-DWRONG")
    assert result.returncode == 1
    assert "-DWRONG raw" in result.stdout and "got no case that both take" in result.stderr, result.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nonsense", "bench: --against: expected a revision of "),
        ("empty", f"bench: --against: expected kernels/{OP} in empty, got none"),
        ("-D'", "bench: --against: expected options of the compilers, got "),
    ],
)
def test_what_is_not_there(tree, name, said):
    result = tree.run("bench", OP, *RUN, "--against", name)
    assert result.returncode in (1, 2) and said in result.stderr and "hint: " in result.stderr, result.stderr


def test_ratio_of_pairs_does_not_see_what_both_share():
    """A machine whose speed changes from round to round by a factor of three; one of them takes 1 % longer."""
    numbers = random.Random(0)
    speeds = [math.exp(numbers.uniform(0, 1.1)) for _ in range(60)]
    before = [speed * math.exp(numbers.gauss(0, 0.005)) for speed in speeds]
    now = [1.01 * speed * math.exp(numbers.gauss(0, 0.005)) for speed in speeds]
    value, low, high = paired_shift(before, now)
    assert low < 1.01 < high and low < value < high and high - low < 0.01
    assert paired_shift([1, 2], [2, 4]) == (2.0, 0.0, math.inf)
