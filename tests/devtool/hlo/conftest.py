"""A tree with simple_add, built once for all tests of the folder."""

import pytest

from tests.devtool_tree import Tree


@pytest.fixture(scope="package")
def tree(tmp_path_factory):
    tree = Tree(tmp_path_factory.mktemp("list"))
    result = tree.run("build", "simple_add")
    assert result.returncode == 0, result.stderr
    return tree
