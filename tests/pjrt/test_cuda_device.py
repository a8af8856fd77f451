"""XLA's CUDA device under torch_xla: tests that need a GPU. The ops' tests run there too, with `--device cuda`."""

import os
import subprocess
import sys

import pytest
import torch
import torch_xla
import torch_xla.runtime
from pyxla_kernels._paged_attention.batches import arguments
from pyxla_kernels.paged_attention.paged_attention import paged_attention
from pyxla_kernels.rms_norm.rms_norm import rms_norm
from pyxla_kernels.simple_add.simple_add import simple_add

import pyxla
from pyxla import custom_op, drain_errors, hlo, sync
from pyxla.hlo import text as hlo_text
from pyxla.library import register
from pyxla.library.find import Library
from pyxla.library.op_table import read_op_table
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(
    torch_xla.runtime.device_type() != "CUDA", reason="needs a GPU: devtool test -- tests --device cuda"
)
DEVICE = torch_xla.device()


def test_memory_is_as_torch_xla_counts_it():
    import torch_xla.core.xla_model as xm

    from pyxla.pjrt.proxy import memory_of

    kept = torch.zeros(1 << 20, device=DEVICE)
    sync()
    expected = xm.get_memory_info(DEVICE)
    assert memory_of(0) == (expected["bytes_used"], expected["peak_bytes_used"], expected["bytes_limit"])
    assert memory_of(0).used >= kept.nbytes


def test_device_is_the_gpu():
    assert torch_xla.runtime.device_type() == "CUDA"
    assert str(DEVICE) == "xla:0"
    assert (torch.ones(3, device=DEVICE) * 2).cpu().tolist() == [2.0, 2.0, 2.0]


def test_script_that_knows_only_torch_and_torch_xla():
    script = """
import torch, torch_xla
x = torch.ones(2, 3, device=torch_xla.device())
print(torch.ops.xla_gpu.simple_add(x, x, 2.0).cpu().tolist())
"""
    env = {**os.environ, "PJRT_DEVICE": "CUDA", "LD_PRELOAD": str(ROOT / "build/lib/libsimple_add.so")}
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert result.stdout == f"{[[3.0] * 3] * 2}\n", result.stderr


def test_steps_in_flight():
    """Fifty steps are dispatched before the first wait; each takes the previous one's result."""
    x = torch.ones(1 << 20, device=DEVICE)
    for _ in range(50):
        x = simple_add(x, x, 0.01)
        torch_xla.sync()
    torch.testing.assert_close(x.cpu(), torch.full((1 << 20,), 1.01**50), rtol=1e-5, atol=0)


def test_two_hundred_graphs():
    for n in range(1, 201):
        x = torch.arange(n, dtype=torch.float32)
        assert torch.equal(simple_add(x.to(DEVICE), x.to(DEVICE), 2.0).cpu(), 3 * x)


def test_op_inside_a_long_chain():
    """XLA fuses the operations around the call; the numbers are those of torch on the CPU in float64."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(64, 1024, generator=generator), torch.rand(1024, generator=generator) + 0.5

    def chain(x, weight):
        for _ in range(16):
            y = torch.sin(x) * 0.5 + 1
            y = torch.ops.xla_gpu.rms_norm(y, weight, 1e-6)
            x = torch.tanh(torch.ops.xla_gpu.simple_add(x, y, 0.1)) - 0.1
        return x

    want = x.double()
    for _ in range(16):
        y = rms_norm.reference(torch.sin(want) * 0.5 + 1, weight.double(), 1e-6)
        want = torch.tanh(want + 0.1 * y) - 0.1
    compiled = torch.compile(chain, backend="openxla", fullgraph=True)
    for call in (chain, compiled):
        got = call(x.to(DEVICE), weight.to(DEVICE)).cpu()
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_calls_around_the_op_are_fused_and_the_op_is_not():
    x = torch.randn(256, 1024, device=DEVICE)
    torch_xla.sync(wait=True)
    with hlo.optimized_modules() as modules:
        torch.tanh(simple_add(torch.sin(x) * 2 + 1, x, 3.0) * 2 - 1).cpu()
    own = [text for text in modules if hlo_text.custom_calls(text, simple_add.target)]
    assert len(own) == 1
    assert len(hlo_text.custom_calls(own[0], simple_add.target)) == 1
    assert "kLoop" in own[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_calls_are_captured_in_a_command_buffer(compiled):
    """Counted in XLA's executable and replayed with other values: a captured call must not keep the first values."""

    def chain(x, y):
        for _ in range(8):
            x = torch.ops.xla_gpu.simple_add(x, y, 0.5)
        return x

    size = 1100 + compiled  # a size that no other test has, because XLA writes nothing for a cached graph
    call = torch.compile(chain, backend="openxla", fullgraph=True) if compiled else chain
    x, y = torch.zeros(size, device=DEVICE), torch.ones(size, device=DEVICE)
    torch_xla.sync(wait=True)
    with hlo.thunk_sequences() as sequences:
        for step in range(1, 4):
            assert call(x + step, y * step).cpu().tolist() == [5.0 * step] * size
    counts = [hlo_text.captured_calls(text) for text in sequences]
    assert max(counts, key=lambda count: count[1]) == (8, 8)


@pytest.mark.parametrize(("calls", "captured"), [(2, 0), (8, 8)])
def test_inspection_counts_captured_calls(calls, captured):
    """XLA:CUDA captures nothing in a graph of a few thunks."""

    def chain(x, y):
        for _ in range(calls):
            x = torch.ops.xla_gpu.simple_add(x, y, 0.5)
        return x

    x = torch.ones(1200, device=DEVICE)
    (module,) = pyxla.inspect(chain, x, x + 1).modules
    assert len(module.calls) == calls and module.captured == captured
    assert module.memory.total > 0 and module.memory.arguments >= x.nbytes


def test_workspace_is_planned_by_xla(launch_library):
    """Two calls in one graph, captured or not; the workspace is in XLA's plan of temporary memory."""

    @custom_op
    def probe_scratch(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @probe_scratch.register_fake
    def _(x):
        return torch.empty_like(x)

    @probe_scratch.register_workspace
    def _(x):
        return 4 * x.numel()

    x = torch.arange(100003, dtype=torch.float32)
    on_gpu = x.to(DEVICE)
    torch_xla.sync(wait=True)
    for _ in range(3):
        result = on_gpu
        for _ in range(6):
            result = probe_scratch(result)
        assert torch.equal(result.cpu(), x + 6)


def test_too_little_memory_is_a_python_error_and_the_process_goes_on():
    big = torch.zeros(1 << 39, dtype=torch.uint8, device=DEVICE) + 1
    with pytest.raises(RuntimeError, match=r"RESOURCE_EXHAUSTED|[Oo]ut of memory"):
        big.cpu()
    del big
    drain_errors()
    assert (torch.ones(2, device=DEVICE) + 1).cpu().tolist() == [2.0, 2.0]


@pytest.fixture(scope="module")
def launch_library(tmp_path_factory):
    path = tmp_path_factory.mktemp("launch") / "liblaunch.so"
    finder = [sys.executable, ROOT / "pyxla/cmake/find_wheels.py"]
    include = subprocess.run(finder, check=True, capture_output=True, text=True).stdout.split(";")[0]
    command = [
        *("nvcc", "-std=c++20", "-shared", "-Xcompiler=-fPIC", "-arch=native"),
        *(f"-I{ROOT / 'pyxla/include'}", "-isystem", include, "-DPYXLA_WITH_CUDA=1"),
        *('-DPYXLA_CUDA_ARCHITECTURES="75-virtual"', '-DPYXLA_COMPILER="test"', '-DPYXLA_FLAGS_DIGEST="test"'),
        *(ROOT / "tests/probe/launch_ffi.cc", ROOT / "tests/probe/launch.cu", "-o", path),
    ]
    subprocess.run(command, check=True)
    library = Library(path, "preloaded", read_op_table(path))
    register.register_library(library, "CUDA")
    return library


def test_kernel_that_the_driver_refuses(launch_library):
    @custom_op
    def probe_launch(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @probe_launch.register_fake
    def _(x):
        return torch.empty_like(x)

    x = torch.ones(4, device=DEVICE)
    torch_xla.sync(wait=True)
    result = probe_launch(x)
    with pytest.raises(RuntimeError, match="probe_launch: launch: expected cudaSuccess, got cudaErrorInvalid"):
        sync()
    # Without the proxy, torch_xla would end the process here.
    with pytest.raises(RuntimeError, match="probe_launch: launch: expected cudaSuccess"):
        result.cpu()
    del result
    assert (torch.ones(2, device=DEVICE) + 1).cpu().tolist() == [2.0, 2.0]


def test_error_inside_a_command_buffer(launch_library):
    """XLA calls the handler while it captures the graph; its error is an exception, and the next graph is captured."""

    @custom_op
    def probe_captured(x: torch.Tensor, threads: int) -> torch.Tensor:
        return x + 1

    @probe_captured.register_fake
    def _(x, threads):
        return torch.empty_like(x)

    def chain(x, last):
        for threads in (*[256] * 7, last):
            x = probe_captured(x, threads)
        return x

    def captured(x, last):
        with hlo.thunk_sequences() as sequences:
            result = chain(x, last)
            torch_xla.sync()
        return result, max((hlo_text.captured_calls(text) for text in sequences), key=lambda count: count[1])

    x = torch.arange(1300, dtype=torch.float32)
    on_gpu = x.to(DEVICE)
    torch_xla.sync(wait=True)
    refused = "probe_captured: launch: expected cudaSuccess, got cudaErrorInvalid"
    result, counts = captured(on_gpu, 4096)
    assert counts == (8, 8)
    with pytest.raises(RuntimeError, match=refused):
        sync()
    with pytest.raises(RuntimeError, match=refused):
        result.cpu()
    del result
    drain_errors()
    result, counts = captured(on_gpu, 512)
    assert counts == (8, 8)
    for _ in range(3):  # replays
        assert torch.equal(result.cpu(), x + 8)
        result = chain(on_gpu, 512)


def test_library_without_code_for_this_gpu(launch_library):
    import dataclasses

    from pyxla.errors import LibraryError

    table = dataclasses.replace(launch_library.table, cuda_architectures=("80-real", "120-virtual"))
    with pytest.raises(
        LibraryError, match=r"probe_launch: CUDA architecture: expected code for sm_\d+, got 80-real, 120"
    ):
        register.register_library(dataclasses.replace(launch_library, table=table), "CUDA")


def test_in_place_cache_update_between_attention_steps():
    """A decode loop: the cache is updated by torch and read by the op, step after step, without a new graph."""
    generator = torch.Generator().manual_seed(1)
    a = arguments(generator, [(1, 20), (1, 30)], torch.float32, block_size=8)
    want = paged_attention.reference(
        *(v.double() if torch.is_tensor(v) and v.is_floating_point() else v for v in a.values())
    )
    on_gpu = {n: v.to(DEVICE) if torch.is_tensor(v) else v for n, v in a.items()}
    compiled = torch.compile(paged_attention, backend="openxla", fullgraph=True)
    for _ in range(3):
        got = compiled(**on_gpu).cpu()
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
