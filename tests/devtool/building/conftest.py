"""A tree with two tiny ops, built once for each file of tests."""

import shutil

import pytest

from tests.devtool_tree import Tree


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A tree with the tiny ops `one` and `two`, configured and built once for all tests of this file."""
    tree = Tree(tmp_path_factory.mktemp("build"))
    shutil.rmtree(tree.kernels / "simple_add")
    for name in ("one", "two"):
        tree.tiny_op(name)
    result = tree.run("build")
    assert result.returncode == 0, result.stderr
    return tree


@pytest.fixture
def tree(shared):
    """The shared tree with its original sources."""
    yield shared
    for folder in shared.kernels.iterdir():
        if folder.is_dir() and folder.name not in ("one", "two"):
            shutil.rmtree(folder)
    for name in ("one", "two"):
        shared.tiny_op(name)
    assert shared.run("build").returncode == 0
