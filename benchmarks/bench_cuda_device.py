"""XLA's CUDA device under torch_xla: start-up against jax on the same plugin, and host time of a chain of custom calls.

python benchmarks/bench_cuda_device.py
"""

import os
import statistics
import subprocess
import sys
import time

PYXLA = """
import torch, torch_xla
print((torch.ones(8, device=torch_xla.device()) + 1).cpu().sum().item())
"""
JAX = """
import jax
print(float((jax.numpy.ones(8) + 1).sum()))
"""
LENGTH = 32


def start_up(script: str, **environment: str) -> float:
    env = {**os.environ, **environment}
    start = time.perf_counter()
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert result.stdout.split()[-1] == "16.0", result.stdout
    return time.perf_counter() - start


def compare_start_up() -> None:
    # jax's own packages first; the path that torch_xla came on would hide none of them.
    runs = [
        (
            start_up(PYXLA, PJRT_DEVICE="CUDA"),
            start_up(JAX, JAX_PLATFORMS="cuda", XLA_PYTHON_CLIENT_PREALLOCATE="false"),
        )
        for _ in range(6)
    ][1:]
    ratios = [ours / theirs for ours, theirs in runs]
    ours, theirs = (statistics.median(times) for times in zip(*runs, strict=True))
    print(
        f"start-up to the first result: pyxla {ours:.2f} s, jax {theirs:.2f} s, ratio {statistics.median(ratios):.2f}"
    )


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

    # A matrix product is a kernel of its own, as a custom call is; the adds become one kernel all together.
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


if __name__ == "__main__":
    compare_start_up()
    os.environ["PJRT_DEVICE"] = "CUDA"
    compare_chain()
