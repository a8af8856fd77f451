"""XLA's CUDA device under torch_xla: start-up against jax on the same plugin, host time of a chain of custom calls, and
GPU time of captured custom calls against the same kernel in a CUDA graph.

python benchmarks/bench_cuda_device.py
"""

import os
import statistics
import tempfile
from pathlib import Path

from bench_start_up import SCRIPTS, start_up

JAX = """
import jax
print(float((jax.numpy.ones(8) + 1).sum()), flush=True)
"""
LENGTH = 32


def compare_start_up() -> None:
    # The first pair is not counted: it fills the file cache.
    runs = [
        (
            start_up(SCRIPTS["eager"], PJRT_DEVICE="CUDA"),
            start_up(JAX, JAX_PLATFORMS="cuda", XLA_PYTHON_CLIENT_PREALLOCATE="false"),
        )
        for _ in range(6)
    ][1:]
    for what, number in (("first result", 0), ("end of the process", 1)):
        pairs = [(ours[number], theirs[number]) for ours, theirs in runs]
        ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        print(f"start to the {what}: pyxla {ours:.2f} s, jax {theirs:.2f} s, ratio {ratio:.2f}")


def compare_chain() -> None:
    import torch
    import torch_xla
    from paired import paired, table

    device = torch_xla.device()
    x = torch.randn(64, 1024, device=device)
    y = torch.randn(64, 1024, device=device)

    def chain(op):
        def run(x, y):
            for _ in range(LENGTH):
                x = op(x, y)
            return x

        return torch.compile(run, backend="openxla", fullgraph=True)

    # A matrix product is a kernel of its own, like a custom call; all adds are fused into one kernel.
    square = torch.randn(1024, 1024, device=device) / 32
    custom = chain(lambda x, y: torch.ops.xla_gpu.simple_add(x, y, 0.5))
    native = chain(lambda x, y: torch.matmul(x, square) + y)
    fused = chain(lambda x, y: x + 0.5 * y)

    sums = (x.cpu().double() + LENGTH * 0.5 * y.cpu().double()).float()
    products = x.cpu().double()
    for _ in range(LENGTH):
        products = products @ square.cpu().double() + y.cpu().double()
    for name, compiled, want, share in (
        ("custom calls", custom, sums, 1e-5),
        ("fused adds", fused, sums, 1e-5),
        # XLA's matrix products of float32 are TF32 on a GPU.
        ("matmuls", native, products.float(), 1e-2),
    ):
        error = (compiled(x, y).cpu() - want).norm() / want.norm()
        assert error < share, f"{name}: wrong numbers ({error:.2g}), not timed"

    def step(compiled):
        def run():
            result = compiled(x, y)
            torch_xla.sync()
            return result

        return run

    times = paired({"custom calls": step(custom), "matmuls": step(native), "fused adds": step(fused)}, rounds=300)
    for name in ("matmuls", "fused adds"):
        table(f"host time of a step of {LENGTH} calls, not waiting", [(name, times)], "custom calls", name)


def compare_captured_calls() -> None:
    """Prints an upper bound of XLA's cost per captured call: (the step's time - the graph's replay) / calls."""
    import cupy
    import torch
    import torch_xla
    from paired import paired
    from pyxla_kernels.simple_add.simple_add import simple_add

    from pyxla import hlo
    from pyxla.hlo import text as hlo_text
    from pyxla.testing import direct_call

    length, size = 136, 1024
    x, y = torch.zeros(size, device=torch_xla.device()), torch.ones(size, device=torch_xla.device())

    def xla_step():
        def run(x, y):
            for _ in range(length):
                x = torch.ops.xla_gpu.simple_add(x, y, 0.5)
            return x

        torch_xla.sync(wait=True)
        compiled = torch.compile(run, backend="openxla", fullgraph=True)
        with hlo.thunk_sequences() as sequences:
            result = compiled(x, y).cpu()
        captured = max((hlo_text.captured_calls(text)[0] for text in sequences), default=0)
        assert captured == length, f"expected {length} captured calls, got {captured}"
        assert result.tolist() == [0.5 * length] * size, "wrong numbers, not timed"

        def step():
            compiled(x, y)
            torch_xla.sync(wait=True)

        return step

    def graph_step():
        arrays = [cupy.zeros(size, dtype=cupy.float32), cupy.empty(size, dtype=cupy.float32)]
        ones = cupy.ones(size, dtype=cupy.float32)
        buffers = [direct_call.Buffer(a.data.ptr, (size,), torch.float32, a) for a in (*arrays, ones)]
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.runtime.deviceSynchronize()
        with stream:
            stream.begin_capture()
            for i in range(length):
                arguments = {"a": buffers[i % 2], "b": buffers[2], "alpha": 0.5}
                direct_call.prepare(simple_add, arguments, (buffers[1 - i % 2],))(stream.ptr)
            graph = stream.end_capture()

        def step():
            graph.launch(stream)
            stream.synchronize()

        step()
        assert cupy.asnumpy(arrays[length % 2]).tolist() == [0.5 * length] * size, "wrong numbers, not timed"
        return step

    times = paired({"xla": xla_step(), "graph": graph_step()}, rounds=300)
    xla, graph = (statistics.median(times[name]) * 1e6 for name in ("xla", "graph"))
    print(f"a step of {length} captured calls: XLA {xla:.0f} us with the host's work, CUDA graph {graph:.0f} us")
    print(f"XLA adds at most {(xla - graph) / length:.2f} us to a call")


if __name__ == "__main__":
    compare_start_up()
    os.environ["PJRT_DEVICE"] = "CUDA"
    with tempfile.TemporaryDirectory() as folder:
        from pyxla import hlo

        hlo.dump_to(Path(folder))
        compare_chain()
        compare_captured_calls()
