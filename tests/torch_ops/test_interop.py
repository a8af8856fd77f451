"""pyxla.interop: memory shared by XLA and CuPy or torch, with the right order between their streams."""

import importlib.util
import os

import pytest
import torch

from pyxla import interop
from pyxla.errors import ArgumentError, PyxlaError

ON_GPU = os.environ.get("PJRT_DEVICE") == "CUDA"
gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU: devtool test -- tests --device cuda")
no_gpu = pytest.mark.skipif(ON_GPU, reason="what it says where XLA's device is the CPU")
torch_cuda = pytest.mark.skipif(not (ON_GPU and torch.cuda.is_available()), reason="needs a torch that sees a GPU")
# More than a second at a GPU's clock of 2 GHz: a reader that does not wait for this kernel reads too early.
CYCLES = 400_000_000

DTYPES = [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.bool,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
]  # fmt: skip
SHAPES = {
    "vector": (5,),
    "rank-0": (),
    "matrix": (3, 4),
    "empty": (0,),
    "rows-without-elements": (2, 0),
    "large": (1 << 20,),
}


def values(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 2 == 0 if dtype == torch.bool else torch.arange(count) % 100).to(dtype).reshape(shape)


def on_xla(tensor: torch.Tensor) -> torch.Tensor:
    import torch_xla

    moved = tensor.to(torch_xla.device())
    torch_xla.sync(wait=True)
    return moved


def pointer(tensor: torch.Tensor) -> int:
    import torch_xla

    torch_xla.sync(wait=True)
    return torch_xla._XLAC._unsafe_buffer_pointer(tensor)


def copies_to_device() -> int:
    """How often torch_xla has copied from the host to the device."""
    import torch_xla.debug.metrics as metrics

    data = metrics.metric_data("TransferToDeviceTime")
    return data[0] if data else 0


def slow_write(array, value: float) -> None:
    """Starts a kernel on the current stream that writes every element after CYCLES."""
    import cupy

    source = """extern "C" __global__ void slow_write(float* x, int n, float value, long long cycles) {
      const long long start = clock64();
      while (clock64() - start < cycles) {}
      for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value;
    }"""
    kernel = cupy.RawKernel(source, "slow_write")
    kernel((1,), (256,), (array, cupy.int32(array.size), cupy.float32(value), cupy.int64(CYCLES)))


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_to_cupy_and_back_is_the_same_memory(dtype):
    want = values((6,), dtype)
    tensor = on_xla(want)
    array = interop.to_cupy(tensor)
    assert array.data.ptr == pointer(tensor)
    back = interop.from_cupy(array)
    assert pointer(back) == array.data.ptr
    assert back.dtype == dtype
    assert torch.equal(back.cpu(), want)


@gpu
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_shape(shape):
    import cupy

    want = values(shape)
    array = interop.to_cupy(on_xla(want))
    assert array.shape == shape
    assert cupy.asnumpy(array).tolist() == want.tolist()
    tensor = interop.from_cupy(cupy.asarray(want.numpy()))
    assert tuple(tensor.shape) == shape
    assert torch.equal((tensor + 1).cpu(), want + 1)


@gpu
def test_pending_and_transposed_tensors_are_computed_first():
    import cupy

    tensor = on_xla(values((2, 3)))
    assert cupy.asnumpy(interop.to_cupy(tensor + 1)).tolist() == (values((2, 3)) + 1).tolist()
    assert cupy.asnumpy(interop.to_cupy(tensor.t())).tolist() == values((2, 3)).t().tolist()
    assert cupy.asnumpy(interop.to_cupy(tensor[1:, ::2])).tolist() == values((2, 3))[1:, ::2].tolist()


@gpu
def test_cupy_reads_after_xla_has_written():
    """XLA still has tens of milliseconds of work when the array is requested."""
    import cupy
    import torch_xla

    matrix = torch.randn(4096, 4096, generator=torch.Generator().manual_seed(0)) / 64
    on_gpu = on_xla(matrix)

    def chain():
        result = on_gpu
        for _ in range(60):
            result = (result @ on_gpu).clamp(-1, 1)
        return result

    chain()
    torch_xla.sync(wait=True)
    result = chain()
    torch_xla.sync()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        seen = interop.to_cupy(result).copy()
        stream.synchronize()
    assert torch.equal(torch.from_numpy(cupy.asnumpy(seen)), result.cpu())


@gpu
@pytest.mark.parametrize("default_stream", [True, False])
def test_xla_reads_after_cupy_has_written(default_stream):
    """CuPy's kernel still runs when XLA starts to compute with its array: a compiled graph starts at once."""
    import cupy
    import torch_xla

    doubled = torch.compile(lambda t: t * 2, backend="openxla", fullgraph=True)
    doubled(on_xla(torch.zeros(1000)))
    torch_xla.sync(wait=True)
    stream = cupy.cuda.Stream.null if default_stream else cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.zeros(1000, dtype=cupy.float32)
        slow_write(array, 1.0)  # compiled here
        stream.synchronize()
        slow_write(array, 3.0)
        tensor = interop.from_cupy(array)
        assert not stream.done, "the import does not wait"
        result = doubled(tensor).cpu()
    assert result.tolist() == [6.0] * 1000


@gpu
def test_memory_lives_as_long_as_either_side_needs_it():
    import cupy

    array = cupy.arange(1 << 20, dtype=cupy.float32)
    tensor = interop.from_cupy(array)
    del array
    cupy.get_default_memory_pool().free_all_blocks()
    filler = cupy.full(1 << 20, 7, dtype=cupy.float32)
    assert tensor.cpu()[-1] == (1 << 20) - 1
    view = interop.to_cupy(tensor + 1)
    del tensor, filler
    for _ in range(3):
        on_xla(torch.zeros(1 << 20))
    assert float(view[-1]) == 1 << 20


@gpu
def test_op_on_memory_of_cupy():
    import cupy
    from pyxla_kernels.simple_add.simple_add import simple_add

    a, b = (interop.from_cupy(cupy.arange(n, n + 8, dtype=cupy.float32)) for n in (0, 1))
    assert simple_add(a, b, 2.0).cpu().tolist() == [3.0 * i + 2 for i in range(8)]


@gpu
def test_what_xla_cannot_take_is_an_error():
    import cupy

    array = cupy.arange(12, dtype=cupy.float32).reshape(3, 4)
    for bad, message in (
        (array.T, r"interop: array: expected a C-contiguous array, got strides \(4, 16\)"),
        (array[:, ::2], "interop: array: expected a C-contiguous array"),
        (array.ravel()[1:5], "interop: array: expected memory on a 16-byte boundary, got address 0x"),
        (torch.zeros(3), "interop: array: expected a cupy.ndarray, got Tensor"),
    ):
        with pytest.raises(ArgumentError, match=message):
            interop.from_cupy(bad)
    with pytest.raises(ArgumentError, match="interop: tensor: expected a dtype that DLPack has, got float8_e4m3fn"):
        interop.to_cupy(on_xla(torch.ones(3).to(torch.float8_e4m3fn)))
    with pytest.raises(ArgumentError, match="interop: tensor: expected a tensor without gradient"):
        interop.to_cupy(on_xla(torch.ones(3)).requires_grad_())
    assert interop.from_cupy(array).cpu().tolist() == values((3, 4)).tolist()


@torch_cuda
def test_torch_and_back_is_the_same_memory():
    want = values((3, 4))
    tensor = on_xla(want)
    shared = interop.to_torch(tensor)
    assert shared.device.type == "cuda"
    assert shared.data_ptr() == pointer(tensor)
    back = interop.from_torch(shared)
    assert pointer(back) == shared.data_ptr()
    assert torch.equal(back.cpu(), want)


@torch_cuda
def test_xla_reads_after_torch_has_written():
    doubled = torch.compile(lambda t: t * 2, backend="openxla", fullgraph=True)
    doubled(on_xla(torch.zeros(1000)))
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor = torch.zeros(1000, device="cuda")
        torch.cuda._sleep(CYCLES)
        tensor += 3
        assert doubled(interop.from_torch(tensor)).cpu().tolist() == [6.0] * 1000


@torch_cuda
def test_compiled_graph_takes_torch_cuda_tensors():
    """torch_xla copies its inputs, except imported ones. The result is on CUDA, without a copy."""
    from pyxla_kernels.simple_add.simple_add import simple_add

    compiled = torch.compile(simple_add, backend="openxla", fullgraph=True)
    a, b = torch.arange(8.0, device="cuda"), torch.ones(8, device="cuda")
    for _ in range(2):
        result = compiled(a, b, 2.0)
        assert result.device.type == "cuda"
        assert result.cpu().tolist() == [i + 2.0 for i in range(8)]
    imported = interop.from_torch(a), interop.from_torch(b)
    compiled(*imported, 2.0)
    copies = copies_to_device()
    assert compiled(*imported, 2.0).cpu().tolist() == [i + 2.0 for i in range(8)]
    assert copies_to_device() == copies


@torch_cuda
def test_to_torch_right_after_a_step_was_started():
    import torch_xla

    x = on_xla(torch.zeros(1 << 22))
    for step in range(20):
        x = x + 1
        torch_xla.sync()
        assert interop.to_torch(x)[-1].item() == step + 1


@no_gpu
def test_another_device_is_an_error():
    for call in (interop.to_cupy, interop.to_torch):
        with pytest.raises(PyxlaError, match="interop: "):
            call(torch.zeros(2))


@no_gpu
@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_cupy_the_error_says_how_to_get_it():
    with pytest.raises(PyxlaError, match="interop: CuPy: expected an importable one, got ModuleNotFoundError"):
        interop.from_cupy(torch.zeros(2))
