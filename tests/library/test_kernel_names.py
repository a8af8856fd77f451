"""Kernel names from libraries, and the breakdown of a profile whose command buffers give only kernel names."""

import subprocess
from pathlib import Path

import pytest
from jaxlib._profile_data import ProfileData
from pyxla_kernels.rms_norm.rms_norm import rms_norm

import pyxla
from pyxla.inspection.profile import DeviceTimes, kernels_in, profiling
from pyxla.library.kernel_names import kernel_names
from pyxla.library.op_table import read_op_table
from tests.bare_loader import BareLoader
from tests.conftest import ROOT
from tests.layers.test_imports import LIBRARIES

# From XLA's profile of a decoder step on an H200, 2026-11-22; without kernels whose names have values of devtool tune.
# DecodeKernel's last two template arguments are from 2026-11-29: groups of rows, and whether it contains the code for
# few work tiles.
ON_AN_H200 = {
    "fused_add_rms_norm": "void pyxla::RmsNormKernel<__nv_bfloat16, __nv_bfloat16, 1, true, true>(pyxla::RmsNormRows)",
    "paged_attention": "void paged_attention::decode::DecodeKernel<paged_attention::decode::Shape<__nv_bfloat16, "
    "__nv_bfloat16, 128, 1, 1>, false>(pyxla::PagedAttentionParams, paged_attention::decode::Plan)",
    "reshape_and_cache": "void reshape_and_cache::ReshapeAndCacheKernel<__nv_bfloat16, __nv_bfloat16, 8>"
    "(reshape_and_cache::Params, long, unsigned int)",
    "rms_norm": "void pyxla::RmsNormKernel<__nv_bfloat16, __nv_bfloat16, 1, false, true>(pyxla::RmsNormRows)",
    "rotary_embedding": "void rotary_embedding::RotaryEmbeddingKernel<__nv_bfloat16, float, 8, false>"
    "(rotary_embedding::Params, long, long, unsigned int)",
}


@pytest.fixture(scope="module")
def built():
    """The names of each built op's kernels."""
    paths = {op: ROOT / f"build/lib/lib{op}.so" for op in LIBRARIES}
    if not all(read_op_table(path).cuda_architectures for path in paths.values()):
        pytest.skip("built without CUDA code: devtool build --cuda on")
    return {op: kernel_names(path) for op, path in paths.items()}


def test_names_in_the_built_libraries(built):
    assert all(name in built[op] for op, name in ON_AN_H200.items())
    assert "rms_norm_rows" in built["rms_norm_triton"]


def test_no_kernel_is_in_two_libraries(built):
    assert sum(map(len, built.values())) == len(frozenset().union(*built.values()))


def test_names_of_c_and_cpp(tmp_path):
    library = tmp_path / "liba.so"
    library.write_bytes(b"\x7fELF\0.text._Z1kPfi\0.text.rows\0.text\0text.other\0.text.half")
    assert kernel_names(library) == {"k(float*, int)", "rows"}


def test_demangler_under_a_loader_that_does_not_find_the_runtime(tmp_path):
    """Nix's loader finds libstdc++ only by the RUNPATH of a library that is linked to it, such as torch's libc10."""
    found = subprocess.check_output(["g++", "-print-file-name=libstdc++.so.6"], text=True).strip()
    (tmp_path / "gcc").mkdir()
    (tmp_path / "gcc/libstdc++.so.6").symlink_to(Path(found).resolve())
    library = tmp_path / "torch/lib/libc10.so"
    library.parent.mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('imported')")
    command = ["g++", "-shared", "-Wl,--no-as-needed", f"-Wl,-rpath,{tmp_path}/gcc", "-x", "c++", "-", "-o", library]
    subprocess.run(command, input="int nothing;", text=True, check=True)
    script = """import ctypes, importlib.util, sys
try:
    print(ctypes.CDLL("libstdc++.so.6"))
except OSError as error:
    print(error)
spec = importlib.util.spec_from_file_location("kernel_names", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.demangled("_Z1kPfi"), module.demangled("rows"))"""
    loader = BareLoader(tmp_path, (library,), without=("libstdc++.so.6",))
    assert loader.run(script, ROOT / "pyxla/library/kernel_names.py", PYTHONPATH=str(tmp_path)) == [
        "libstdc++.so.6: cannot open shared object file: No such file or directory",
        "k(float*, int) rows",
    ]


PROFILE = """
planes {{ name: "/device:GPU:0"
  lines {{ name: "Stream #14" {events} }}
  lines {{ name: "Stream #15" events {{ metadata_id: 9 offset_ps: 0 duration_ps: 7000000 }} }}
  {names}
  event_metadata {{ key: 9 value {{ id: 9 name: "MemcpyH2D" }} }}
  stat_metadata {{ key: 1 value {{ id: 1 name: "hlo_op" }} }} }}
planes {{ name: "/host:CPU" lines {{ name: "python"
    events {{ metadata_id: 1 offset_ps: 0 duration_ps: 9000000 stats {{ metadata_id: 1 str_value: "dot" }} }} }}
  event_metadata {{ key: 1 value {{ id: 1 name: "launch" }} }}
  stat_metadata {{ key: 1 value {{ id: 1 name: "hlo_op" }} }} }}
"""


def profile(*kernels: str) -> bytes:
    """A GPU's profile in which these kernels of a command buffer run for 2 us each, 1 us apart."""
    events = "".join(
        f"events {{ metadata_id: {n} offset_ps: {3_000_000 * n} duration_ps: 2000000 "
        'stats { metadata_id: 1 str_value: "command_buffer_1" } } '
        for n in range(1, len(kernels) + 1)
    )
    names = "".join(
        f'event_metadata {{ key: {n} value {{ id: {n} name: "{name}" }} }} ' for n, name in enumerate(kernels, 1)
    )
    return ProfileData.text_proto_to_serialized_xspace(PROFILE.format(events=events, names=names))


def test_breakdown_of_command_buffers(built):
    kernels = kernels_in((op, ROOT / f"build/lib/lib{op}.so") for op in ("rms_norm", "reshape_and_cache"))
    found = DeviceTimes()
    ran = profile(
        ON_AN_H200["rms_norm"],
        ON_AN_H200["reshape_and_cache"],
        ON_AN_H200["reshape_and_cache"],
        "nvjet_sm90_tst_112x64_64x9_2x1_v_bz_TNN",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)",
        "gemm_fusion_dot_115",
        "loop_slice_fusion_62",
    )
    found.read(ran, {}, kernels)
    assert found.calls == {"rms_norm": 1, "reshape_and_cache": 2, "matrix products": 3, "the rest of XLA": 1}
    assert found.seconds["reshape_and_cache"] == pytest.approx(4e-6) and found.busy == pytest.approx(14 / 20)


def test_breakdown_on_this_device():
    import torch
    import torch_xla

    x, weight = torch.ones(8, 64, device=torch_xla.device()), torch.ones(64, device=torch_xla.device())
    seen = pyxla.inspect(lambda: rms_norm(x, weight, 1e-5) * 2)
    with profiling(seen) as found:
        for _ in range(3):
            (rms_norm(x, weight, 1e-5) * 2).cpu()
    assert found.calls["rms_norm"] == 3 and found.seconds["rms_norm"] > 0
