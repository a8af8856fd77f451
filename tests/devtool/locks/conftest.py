"""Small trees to set up: one whose .venv is complete, and new ones."""

import pytest

from tests.small_tree import Tree


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Tree:
    """A tree whose .venv is complete, before and after each test."""
    tree = Tree(tmp_path_factory.mktemp("made") / "a tree")
    tree.first_run = tree.works("list", "--x=a b")
    return tree


@pytest.fixture
def tree(tmp_path) -> Tree:
    return Tree(tmp_path / "tree")
