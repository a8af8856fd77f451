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
    _, _, shown = result.stdout.partition("ERROR collecting kernels/broken/test_broken.py")
    place = 'broken.py", line 9' if "Syntax" in error else "kernels/broken/broken.py:9: in <module>"
    assert place in shown and error in shown and line in shown
