"""What `devtool test` shows of failures: of an op that cannot be imported, and of one cause that fails many tests."""

import pytest

from tests.devtool_tree import Tree

DECLARED = """
import torch
from pyxla import custom_op

@custom_op
def broken(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = Tree(tmp_path_factory.mktemp("failures"))
    for op in ("tiny", "broken"):
        tree.tiny_op(op)
        (tree.kernels / op / f"test_{op}.py").write_text("def test_it(): pass\n")
    return tree


@pytest.mark.parametrize(
    ("line", "error"),
    [("value = undefined", "NameError: name 'undefined' is not defined"), ("def broken(:", "SyntaxError: invalid")],
)
def test_op_that_cannot_be_imported_fails_alone(tree, line, error):
    """Also if it fails after it declared the op, which a second import would refuse to do again."""
    source = tree.kernels / "broken/broken.py"
    source.write_text(DECLARED + line)
    result = tree.run("test", "tiny", "broken", "--device", "cpu")
    source.unlink()
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"
    _, _, shown = result.stdout.partition("collection of kernels/broken/test_broken.py")
    place = 'broken.py", line 9' if "Syntax" in error else "kernels/broken/broken.py:9: in <module>"
    assert place in shown and error in shown and line in shown


MANY = """
import pytest
from pyxla.errors import PyxlaError

CASES = ["f32-3x5", "f32-7", "bf16-4000x2"]

@pytest.mark.parametrize("check", ["check_lazy", "check_raw"])
@pytest.mark.parametrize("case", CASES)
def test_op(check, case):
    shape = tuple(range(len(case)))
    if case == "f32-7" and check == "check_raw":
        return
    if check == "check_raw":
        raise PyxlaError(f"tiny: out: expected shape {shape}, got (2, 1)", "a hint")
    raise RuntimeError(f"Bad StatusOr access: INVALID_ARGUMENT: tiny: out: expected shape {shape}, got ()")

@pytest.mark.parametrize("case", CASES)
def test_values(case):
    assert False, f"tiny[{case}]: values: expected {len(case)}.5e-3 at ({len(case)}, 1), got nan; 3 of 15 differ"

@pytest.fixture
def unready():
    raise ValueError("not ready")

def test_of_another_cause(unready): pass
def test_that_logs(caplog):
    import logging
    caplog.set_level(logging.DEBUG)
    logging.getLogger("torch.__trace").debug("a step of torch.compile")
    logging.getLogger("tiny").warning("a line of the op's")
    print("said")
    raise ValueError("with output")
def test_comparison(): assert 1 == 2
def test_other_comparison(): assert 3 == 4
"""


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["one", "workers"])
def test_equal_failures_are_shown_once_and_the_first_cause_last(tree, processes):
    (tree.kernels / "tiny/test_tiny.py").write_text(MANY)
    result = tree.run("test", "tiny", "--device", "cpu", *processes)
    assert result.stdout.splitlines()[-1] == "1 passed, 12 failed, 0 skipped"
    own = result.stdout[result.stdout.index("\n___") :]
    titles = [line.strip("_ ").rpartition("::")[2] for line in own.splitlines() if line.startswith("__")]
    assert titles == [
        *("test_other_comparison", "test_comparison", "test_that_logs", "test_of_another_cause"),
        *("test_values[f32-3x5]", "test_op[f32-3x5-check_lazy]"),
    ]
    assert "setup of tiny" not in own and "setup of kernels/tiny/test_tiny.py::test_of_another_cause" in own
    assert own.count("tests fail like this:") == 2
    assert (
        "\n5 tests fail like this:\n  kernels/tiny/test_tiny.py::test_op\n"
        "    check_lazy, check_raw: f32-3x5, bf16-4000x2\n    check_lazy: f32-7\n"
    ) in own
    assert (
        "\n3 tests fail like this:\n  kernels/tiny/test_tiny.py::test_values\n    f32-3x5, f32-7, bf16-4000x2\n" in own
    )
    assert own.count("E   ") == 7 and "short test summary" not in own
    assert len(own.splitlines()) < 70
    assert "\nsaid\n" in own and "a line of the op's" in own and "a step of torch.compile" not in own


@pytest.mark.parametrize("asked", ["--tb=line", "-v"])
def test_failures_in_the_form_that_the_user_asked_pytest_for(tree, asked):
    (tree.kernels / "tiny/test_tiny.py").write_text(MANY)
    result = tree.run("test", "tiny", "--device", "cpu", "--", asked)
    assert "tests fail like this" not in result.stdout
    assert "= FAILURES =" in result.stdout
    assert result.stdout.count("\nFAILED kernels/tiny/test_tiny.py::") == 11


def test_process_of_xdist_that_a_test_ends(tree):
    """pytest-xdist reports it without a phase, and goes on in another process."""
    path = tree.kernels / "tiny/test_tiny.py"
    path.write_text("import os\n\ndef test_it(): pass\n\ndef test_ends(): os.abort()\n")
    result = tree.run("test", "tiny", "--device", "cpu", "--", "-n", "2")
    path.write_text("def test_it(): pass\n")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "crashed while running 'kernels/tiny/test_tiny.py::test_ends'" in result.stdout
