"""A Triton op's library: the code in it, without a GPU, without a driver and with operands in another order."""

import re
import shutil

import pytest
import torch
from pyxla_kernels.rms_norm_triton.rms_norm_triton import triton as rms_norm_triton

from pyxla.errors import PyxlaError
from pyxla.library.find import Library
from pyxla.library.op_table import read_op_table
from pyxla.library.register import check_architecture
from pyxla.pjrt import cuda_plugin
from pyxla.testing import direct_call
from tests.devtool_tree import needs_nvcc
from tests.kernels.triton_code import SCRATCH, cubins, cuobjdump, parameter_sizes, triton

pytestmark = needs_nvcc
ARCHITECTURES = ("80-real", "90a-real", "100a-real")


@pytest.mark.slow
def test_code_for_each_architecture_lies_in_the_library(triton_tree, compiled, variants):
    table = read_op_table(triton_tree.library("rms_norm_triton"))
    assert table.cuda_architectures == ARCHITECTURES
    assert table.compiler.endswith(f", Triton {triton.__version__}")
    listed = cuobjdump("-lelf", triton_tree.library("rms_norm_triton")).split()
    for architecture in ARCHITECTURES:
        name = f".sm_{architecture.removesuffix('-real')}.cubin"
        assert sum(word.endswith(name) for word in listed) == len(variants)
    assert len(cubins(compiled)) == len(variants) * len(ARCHITECTURES)
    library = Library(triton_tree.library("rms_norm_triton"), "checkout", table)
    for capability in ((8, 0), (8, 9), (9, 0), (10, 0)):
        check_architecture(library, capability)
    with pytest.raises(PyxlaError, match="expected code for sm_103, got 80-real, 90a-real, 100a-real in "):
        check_architecture(library, (10, 3))


@pytest.mark.slow
def test_kernels_take_what_the_launcher_passes_and_spill_nothing(compiled):
    for cubin in cubins(compiled):
        # x, weight, out, rows, hidden, eps and the scratch memory.
        assert parameter_sizes(cubin) == {"rms_norm_rows": [8, 8, 8, 8, 4, 4, *[8] * SCRATCH]}, cubin.name
        (used,) = re.findall(r"REG:(\d+) STACK:(\d+) .* LOCAL:(\d+)", cuobjdump("-res-usage", cubin))
        assert int(used[0]) <= 128 and used[1:] == ("0", "0"), cubin.name


@pytest.mark.slow
def test_library_holds_no_path_and_needs_no_driver(triton_tree, compiled):
    data = triton_tree.library("rms_norm_triton").read_bytes()
    assert str(triton_tree.root).encode() not in data
    result = triton_tree.run("verify", str(triton_tree.library("rms_norm_triton")))
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_handler_without_a_driver(triton_tree, monkeypatch):
    """The real library, with the CUDA runtime inside: an error, and the process continues."""
    if shutil.which("nvidia-smi"):
        pytest.skip("there is a driver")
    monkeypatch.setattr(cuda_plugin, "gpus", lambda: ())
    path = triton_tree.library("rms_norm_triton")
    library = Library(path, "checkout", read_op_table(path))
    x = torch.ones(2, 16)
    arguments = {"x": x, "weight": None, "eps": 0.0}
    call = direct_call.prepare(rms_norm_triton, arguments, [torch.empty_like(x)], "CUDA", library=library)
    for _ in range(2):
        with pytest.raises(PyxlaError, match="rms_norm: launch: expected cudaSuccess, got cudaError"):
            call(0)


SWAPPED = "{params.weight, params.weight_dtype}, {params.x, params.dtype}"


@pytest.mark.slow
@pytest.mark.parametrize("swapped", [False, True])
def test_operands_in_another_order_give_other_numbers(triton_tree, swapped):
    """In float32 no dtype tells x from the weight."""
    launch = triton_tree.kernels / "rms_norm_triton/rms_norm_triton_launch.cc"
    right = launch.read_text()
    if swapped:
        launch.write_text(right.replace("{params.x, params.dtype}, {params.weight, params.weight_dtype}", SWAPPED))
        assert SWAPPED in launch.read_text()
    try:
        result = triton_tree.run("test", "rms_norm_triton", "--cuda", "on", "--", "-k", "interpreter")
    finally:
        launch.write_text(right)
    assert result.returncode == swapped, result.stdout + result.stderr
    assert ("rms_norm.triton: in Triton's interpreter: " in result.stdout) == swapped, result.stdout
