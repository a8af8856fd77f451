"""CUDAARCHS: the architectures of a build, as CMake names them."""

import json
import shutil

import pytest

from tests.devtool_tree import Tree, needs_nvcc


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = Tree(tmp_path_factory.mktemp("architectures"))
    shutil.rmtree(tree.kernels / "simple_add")
    tree.tiny_op("one")
    return tree


@pytest.mark.slow
@needs_nvcc
def test_architectures_named_by_the_user(tree):
    result = tree.run("build", "one", CUDAARCHS="75-real;100-virtual", PYXLA_CUDA="on")
    assert result.returncode == 0, result.stderr
    manifest = json.loads(tree.library("one").with_suffix(".json").read_text())
    assert manifest["cuda_architectures"] == ["75-real", "100-virtual"]


@pytest.mark.parametrize("named", ["native", "80,90", "90a-real;", "sm_90"])
def test_architectures_that_nvcc_does_not_take(tree, named):
    result = tree.run("build", "one", CUDAARCHS=named)
    message = "build: CUDAARCHS: expected architectures such as 80-real;90a-real;100-virtual, got "
    assert result.returncode == 1 and result.stderr.startswith(message)
