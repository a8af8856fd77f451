"""compiled_for: modules compiled by XLA:CUDA for a GPU that is not present."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch_xla
import torch_xla.runtime
from pyxla_kernels._testing.custom_calls import to_xla

import pyxla
from devtool.hlo.output import GPUS
from pyxla import ArgumentError, LibraryError, PyxlaError, hlo
from pyxla.hlo import text as hlo_text
from pyxla.inspection import ahead_of_time
from pyxla.nn import in_mode
from pyxla.pjrt import cuda_plugin
from tests.conftest import ROOT
from tests.nn_served import Served

pytestmark = pytest.mark.skipif(
    torch_xla.runtime.device_type() != "CPU", reason="compiles for a GPU that is not here: on the CPU"
)
DEVICE = torch_xla.device()


def normed(x, weight):
    y = torch.ops.xla_gpu.rms_norm(x, weight, 1e-5)
    # erf is not an operation of StableHLO.
    return torch.nn.functional.gelu(y @ y.t())


@pytest.fixture(scope="module")
def seen():
    return pyxla.inspect(normed, torch.randn(64, 256).to(DEVICE), torch.ones(256, device=DEVICE))


@pytest.mark.parametrize("gpu", ahead_of_time.GPUS)
def test_compiled_for_each_gpu(seen, gpu):
    (module,) = pyxla.compiled_for(seen, gpu).modules
    (call,) = module.calls
    assert call.target == "xla_gpu_rms_norm" and call.attributes == {"eps": pytest.approx(1e-5)}
    assert [operand.shape for operand in call.operands] == ["f32[64,256]{1,0}", "f32[256]{0}"]
    assert module.name == seen.modules[0].name and module.captured is None
    # A 64 x 64 matrix product is XLA:CUDA's own kernel; on the CPU it is a dot.
    assert "gemm" in module.after and "gemm" not in seen.modules[0].after
    assert module.memory.arguments == seen.modules[0].memory.arguments


@pytest.mark.parametrize("mode", ["direct", "compile"])
def test_a_cache_is_updated_in_place_on_cuda(mode):
    """On CUDA the layers' calls are fused with slices; without the donated buffers XLA would copy both caches."""
    torch._dynamo.reset()
    served = Served(mode)
    _, arguments = served.step([(served.open(), 7)])
    on_cuda = pyxla.compiled_for(pyxla.inspect(in_mode(served.trace, mode), *arguments), "H200")
    pyxla.assert_custom_calls(on_cuda, "reshape_and_cache", 2)
    pyxla.assert_custom_calls(on_cuda, "paged_attention", 2)
    pyxla.assert_no_copies(on_cuda)
    (module,) = on_cuda.modules
    assert module.memory.in_place == sum(layer.nbytes for layer in served.cache.layers)


def test_library_without_code_for_the_gpu(seen, monkeypatch):
    capability, fields = ahead_of_time.GPUS["A100"]
    assert capability == (8, 0)
    monkeypatch.setitem(ahead_of_time.GPUS, "V100", ((7, 0), fields))
    with pytest.raises(LibraryError, match=r"^rms_norm: CUDA architecture: expected code for sm_70, got "):
        pyxla.compiled_for(seen, "V100")


def test_module_that_cuda_does_not_compile(seen):
    (module,) = seen.modules
    text = module.before.replace("xla_gpu_rms_norm", "nobody_has_this")
    other = type(seen)("CPU", [type(module)(**vars(module) | {"before": text})])
    # UNIMPLEMENTED in jax-cuda13-pjrt 0.7.2.
    said = r"expected a module that XLA:CUDA compiles, got (NOT_FOUND|UNIMPLEMENTED): .*nobody_has_this"
    with pytest.raises(PyxlaError, match=said):
        pyxla.compiled_for(other, "H200")


def test_plugin_that_takes_no_description(seen, monkeypatch):
    """With an older plugin or another vendor's, jaxlib's own error must not reach the user."""
    monkeypatch.setattr(ahead_of_time, "_description", lambda gpu: "no description")
    monkeypatch.setattr(ahead_of_time, "_device", ahead_of_time._device.__wrapped__)
    with pytest.raises(PyxlaError, match=r"^compiled_for: plugin: expected one that compiles .*, got FAILED_PREC"):
        pyxla.compiled_for(seen, "H200")


def test_devtool_hlo_for_a_gpu():
    command = [sys.executable, "-P", "-m", "devtool", "hlo", "simple_add", "--gpu", "H200", "--json"]
    env = os.environ | {"PJRT_DEVICE": "CPU"}
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["device"] == "CUDA" and data["modules"][0]["calls"][0]["target"] == "xla_gpu_simple_add"


def test_gpus_of_devtool_are_those_of_pyxla():
    assert tuple(ahead_of_time.GPUS) == GPUS


def test_gpu_that_nobody_described(seen):
    with pytest.raises(ArgumentError, match=r"^compiled_for: gpu: expected A100 or H100 or H200, got H300$"):
        pyxla.compiled_for(seen, "H300")


def test_modules_of_several_devices(seen):
    (module,) = seen.modules
    text = module.before.replace("entry_computation_layout", "num_partitions=4, entry_computation_layout", 1)
    other = type(seen)("CPU", [type(module)(**vars(module) | {"before": text})])
    with pytest.raises(ArgumentError, match=r"^compiled_for: seen: expected modules of one device, got one of 4\n"):
        pyxla.compiled_for(other, "H200")


def test_without_the_plugin(seen, monkeypatch):
    monkeypatch.setenv("PYXLA_PJRT_PLUGIN", "/no/such/plugin.so")
    # Without their caches, because a process can load the cached objects only once.
    for name in ("_plugin", "_device"):
        monkeypatch.setattr(ahead_of_time, name, getattr(ahead_of_time, name).__wrapped__)
    cuda_plugin.find_plugin.cache_clear()
    try:
        with pytest.raises(
            PyxlaError, match=r"^CUDA: PYXLA_PJRT_PLUGIN: expected a PJRT plugin, got no file at /no/such"
        ):
            pyxla.compiled_for(seen, "H200")
    finally:
        cuda_plugin.find_plugin.cache_clear()


def test_bytecode_states_what_is_donated():
    cache = torch.zeros(2, 3, 4, 2, 8, device=DEVICE)
    rows = to_xla({"key": torch.ones(1, 2, 8), "value": torch.ones(1, 2, 8)})
    slots = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    (module,) = pyxla.inspect(
        lambda: torch.ops.xla_gpu.reshape_and_cache(rows["key"], rows["value"], cache, slots)
    ).modules
    (donor,) = hlo_text.buffer_donors(module.before)
    from jaxlib.mlir import ir

    data = hlo.bytecode(module.before)
    with hlo._as_stablehlo(module.before):
        main = ir.SymbolTable(ir.Module.parse(data).operation)["main"]
        types = ir.FunctionType(main.attributes["function_type"].value).inputs
        donated = [i for i, given in enumerate(main.attributes["arg_attrs"]) if len(given)]
    assert donated == [donor] and str(types[donor]) == "tensor<2x3x4x2x8xf32>"


def test_parameters_of_a_module_s_aliases_are_donors():
    assert hlo_text.buffer_donors("HloModule a, input_output_alias={ {0}: (2, {}, may-alias) }") == {2}
    assert hlo_text.buffer_donors(
        "HloModule a, buffer_donor={ (1, {}), (14, {}) }, entry_computation_layout={()->()}"
    ) == {1, 14}
    assert hlo_text.buffer_donors("") == set()
