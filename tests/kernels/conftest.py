"""rms_norm.triton, built for CUDA without a GPU."""

import shutil
import sys

import pytest

from tests.conftest import ROOT
from tests.devtool_tree import Tree


@pytest.fixture(scope="module")
def triton_tree(tmp_path_factory):
    """A tree with rms_norm and its implementation in Triton, which is built for CUDA."""
    tree = Tree(tmp_path_factory.mktemp("triton"))
    for name in ("rms_norm", "rms_norm_triton"):
        shutil.copytree(ROOT / "kernels" / name, tree.kernels / name)
    result = tree.run("build", "rms_norm_triton", "--cuda", "on")
    assert result.returncode == 0, result.stderr
    return tree


@pytest.fixture(scope="module")
def variants():
    sys.path.insert(0, str(ROOT / "pyxla/cmake"))
    from triton_spec import read_variants

    yield read_variants(ROOT / "kernels/rms_norm_triton/triton_kernels.py")
    sys.path.remove(str(ROOT / "pyxla/cmake"))


@pytest.fixture(scope="module")
def compiled(triton_tree):
    """The folder with each variant's fat binary and cubins."""
    return triton_tree.root / "build/cmake/rms_norm_triton_triton"
