"""The launches of a Triton op's library: kernels, numbers and launches of rms_norm.triton, without a GPU."""

import ctypes
import json
import re
import shlex
import struct
import subprocess

import pytest
import torch
from pyxla_kernels.rms_norm.cases import CASES
from pyxla_kernels.rms_norm_triton.rms_norm_triton import triton as rms_norm_triton

from pyxla.errors import PyxlaError
from pyxla.library.find import Library
from pyxla.library.op_table import read_op_table
from pyxla.pjrt import cuda_plugin
from pyxla.testing import direct_call
from tests.conftest import ROOT
from tests.devtool_tree import needs_nvcc
from tests.kernels.triton_code import SCRATCH, cubins, parameter_sizes

pytestmark = needs_nvcc
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
NO_KERNEL_IMAGE = 209


@pytest.fixture(scope="module")
def runtime(triton_tree):
    """The op's objects linked with a recorder of launches instead of the CUDA runtime."""
    build = triton_tree.root / "build/cmake"
    commands = json.loads((build / "compile_commands.json").read_text())
    launcher = next(entry for entry in commands if entry["file"].endswith("rms_norm_triton_triton/launch.cc"))
    # The same compiler and folders.
    words = shlex.split(launcher["command"])
    flags = [word for word in words[: words.index("-o")] if not word.startswith("-Werror")]
    objects = [str(path) for path in (build / "CMakeFiles/rms_norm_triton.dir").rglob("*.o")]
    library = triton_tree.root / "recorded/librms_norm_triton.so"
    library.parent.mkdir()
    # -Bsymbolic: torch's own CUDA runtime may be in the process.
    source = ROOT / "tests/probe/recording_runtime.cc"
    command = [*flags, "-shared", "-Wl,-Bsymbolic", str(source), *objects, "-o", str(library)]
    subprocess.run(command, cwd=launcher["directory"], check=True)
    return library


@pytest.fixture
def recorded(runtime, compiled, monkeypatch):
    """Calls the CUDA handler, and returns what it launched."""
    monkeypatch.setattr(cuda_plugin, "gpus", lambda: ())
    library = Library(runtime, "preloaded", read_op_table(runtime))
    return Recorded(ctypes.CDLL(str(runtime)), library, parameter_sizes(cubins(compiled)[0])["rms_norm_rows"])


class Recorded:
    def __init__(self, memory, library, sizes):
        self.memory, self.library, self.sizes = memory, library, sizes
        (ctypes.c_int * 32).in_dll(memory, "parameter_sizes")[: len(sizes)] = sizes
        for name, value in {"parameter_count": len(sizes), "load_status": 0, "launch_status": 0, "launches": 0}.items():
            self.set(name, value)

    def set(self, name, value):
        ctypes.c_int.in_dll(self.memory, name).value = value

    def get(self, name, kind=ctypes.c_int):
        found = kind.in_dll(self.memory, name)
        return list(found) if hasattr(found, "__len__") else found.value

    def call(self, x, weight, eps, out, stream=0):
        arguments = {"x": x, "weight": weight, "eps": eps}
        direct_call.prepare(rms_norm_triton, arguments, [out], "CUDA", library=self.library)(stream)

    def parameters(self):
        rows = (ctypes.c_ubyte * 16 * 32).in_dll(self.memory, "parameters")
        return [bytes(rows[i])[:size] for i, size in enumerate(self.sizes)]


def chosen(variants, x, weight, out):
    """The variant of a call and its integers, by triton_spec, not by the C++."""
    hidden = x.shape[-1]
    values = {"rows": x.numel() // hidden if hidden else 0, "hidden": hidden}
    addresses = {"x": x.data_ptr(), "weight": 0 if weight is None else weight.data_ptr(), "out": out.data_ptr()}
    types = {"x": TYPES[x.dtype], "weight": TYPES[(x if weight is None else weight).dtype], "out": TYPES[out.dtype]}
    index = next(i for i, v in enumerate(variants) if v.takes(types, values | addresses))
    return index, values, addresses


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_launch_of_each_case(recorded, compiled, variants, case):
    arguments = case.arguments(0)
    x, weight, eps = arguments["x"], arguments["weight"], arguments["eps"]
    check_launch(recorded, compiled, variants, x, weight, eps)


def check_launch(recorded, compiled, variants, x, weight, eps):
    out = torch.empty_like(x)
    recorded.call(x, weight, eps, out, stream=0x5EED)
    index, values, addresses = chosen(variants, x, weight, out)
    variant = variants[index]
    grid = [size.value(values) for size in variant.grid]
    assert recorded.get("launches") == (0 not in grid)
    if 0 in grid:
        return
    assert recorded.get("grid", ctypes.c_uint * 3) == grid == [values["rows"], 1, 1]
    assert recorded.get("block", ctypes.c_uint * 3) == [32 * variant.num_warps, 1, 1]
    assert recorded.get("stream", ctypes.c_void_p) == 0x5EED
    fat_binary = (compiled / f"{index}.fatbin").read_bytes()
    assert ctypes.string_at(recorded.get("image", ctypes.c_void_p), len(fat_binary)) == fat_binary
    want = struct.pack("<QQQ", *addresses.values()), struct.pack("<q", values["rows"])
    got = recorded.parameters()
    assert b"".join(got[:3]) == want[0] and got[3] == want[1]
    assert got[4:] == [struct.pack("<i", values["hidden"]), struct.pack("<f", eps), *[bytes(8)] * SCRATCH]


@pytest.mark.slow
def test_unaligned_operand_takes_the_variant_without_vectors(recorded, compiled, variants):
    x = torch.ones(2 * 64 + 1)[1:].view(2, 64)
    check_launch(recorded, compiled, variants, x, torch.ones(64), 1e-6)
    index, *_ = chosen(variants, x, torch.ones(64), torch.empty_like(x))
    assert not variants[index].divisible_by_16


@pytest.mark.slow
def test_variant_is_loaded_once_and_in_a_capture_too(recorded):
    # A block that no case has.
    x, weight = torch.ones(3, 8192), torch.ones(8192)
    before = recorded.get("loads")
    for _ in range(3):
        recorded.call(x, weight, 0.5, torch.empty_like(x))
    assert recorded.get("loads") == before + 1 and recorded.get("launches") == 3
    relaxed = 2
    assert recorded.get("mode_of_load") == relaxed != recorded.memory.capture_mode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2**31, 16), "rms_norm_rows: expected a grid of at most (2147483647, 65535, 65535), got (2147483648, 1, 1)"),
        (
            (1, 2**30 + 1),
            "rms_norm_rows: expected a call that one of its VARIANTS takes (triton_kernels.py), "
            "got x=float32, weight=float32, out=float32, rows=1, hidden=1073741825, eps=0.000001",
        ),
    ],
)
def test_sizes_that_no_kernel_takes(recorded, shape, message):
    x, out = (direct_call.Buffer(1 << 12, shape, torch.float32) for _ in range(2))
    with pytest.raises(PyxlaError, match=re.escape(f"rms_norm: {message}")):
        recorded.call(x, None, 1e-6, out)
    assert recorded.get("launches") == 0


@pytest.mark.slow
def test_gpu_that_the_library_has_no_code_for(recorded):
    (ctypes.c_int * 2).in_dll(recorded.memory, "capability")[:] = (12, 0)
    recorded.set("launch_status", NO_KERNEL_IMAGE)
    expected = "rms_norm: CUDA architecture: expected code for sm_120, got 80-real,90a-real,100a-real"
    with pytest.raises(PyxlaError, match=re.escape(expected)):
        recorded.call(torch.ones(2, 16), None, 0.0, torch.empty(2, 16))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["load_status", "launch_status"])
def test_error_of_cuda(recorded, what):
    recorded.set(what, 2)
    # A block that no case has.
    x = torch.ones(2, 8192, dtype=torch.float16)
    expected = "rms_norm: launch: expected cudaSuccess, got cudaErrorOfTheTest (its text) from rms_norm_rows at "
    with pytest.raises(PyxlaError, match=re.escape(expected)):
        recorded.call(x, torch.ones(8192), 0.0, torch.empty_like(x))
    # Otherwise the check after a later launch would report this launch's error.
    assert recorded.get("last_error") == 0
    recorded.set(what, 0)
    recorded.call(x, torch.ones(8192), 0.0, torch.empty_like(x))


@pytest.mark.slow
@pytest.mark.parametrize(("bytes_", "allowed"), [(48 * 1024, 0), (100_000, 100_000)])
def test_shared_memory_above_48_kib_is_asked_for(recorded, bytes_, allowed):
    recorded.set("shared_memory_allowed", 0)
    recorded.set("parameter_count", 0)
    assert recorded.memory.launch_with_shared_memory(bytes_) == 0
    assert recorded.get("shared_memory_allowed") == allowed
    assert recorded.get("shared_bytes", ctypes.c_size_t) == bytes_
