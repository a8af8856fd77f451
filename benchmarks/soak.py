"""Runs steps for hours and tells whether memory grows: a compiled step and a lazily traced one, each updating a cache.

python -m benchmarks.soak --device cuda --steps 1000000
"""

import os
import time
from pathlib import Path

import click

DEVICES = {"cpu": "CPU", "cuda": "CUDA"}
MIB = 1 << 20
# Growth is counted from here on: until then the allocators fill up.
WARM_UP = 0.2


@click.command()
@click.option("--device", type=click.Choice(list(DEVICES)), default="cuda")
@click.option("--steps", default=100_000, help="Steps of each kind")
@click.option("--graphs", default=100, help="Different graphs of each kind, spread over the steps")
@click.option("--kind", "wanted", type=click.Choice(["compiled", "lazy"]), help="By default both, in turn")
@click.option("--reports", default=20, help="Lines of output for each kind")
def main(device: str, steps: int, graphs: int, wanted: str | None, reports: int) -> None:
    """Prints the memory of host and device while it runs, and at the end its growth per 100,000 steps."""
    os.environ["PJRT_DEVICE"] = DEVICES[device]
    import torch
    import torch_xla

    torch._dynamo.config.cache_size_limit = graphs + 8
    # Of all graphs of a function, 256 by default: dynamo traces no more after that, and the steps run lazily.
    torch._dynamo.config.accumulated_cache_size_limit = graphs + 8
    kinds = {"compiled": torch.compile(_step, backend="openxla", dynamic=False), "lazy": _step}
    for kind, step in kinds.items():
        if wanted not in (None, kind):
            continue
        rows = []
        begin = time.perf_counter()
        for number, memory in _run(step, torch_xla.device(), steps, graphs, max(1, steps // reports)):
            rows.append((number, *memory))
            shown = ", ".join(
                f"{name} {value:.1f} MiB" for name, value in zip(("host", "device"), memory, strict=False)
            )
            click.echo(f"{kind} {number} steps, {time.perf_counter() - begin:.0f} s: {shown}")
        late = [row for row in rows if row[0] >= WARM_UP * steps]
        for place, name in enumerate(("host", "device")[: len(rows[0]) - 1], start=1):
            slope = _slope([row[0] for row in late], [row[place] for row in late])
            click.echo(f"{kind}: {name} {1e5 * slope:+.2f} MiB per 100,000 steps")


def _step(key, value, cache, slots, x, weight):
    import torch

    ops = torch.ops.xla_gpu
    ops.reshape_and_cache(key, value, cache, slots)
    return ops.rms_norm(x, weight, 1e-6)


def _run(step, device, steps: int, graphs: int, every: int):
    """The number of steps and the memory after each `every` steps; the rows of x choose the graph."""
    import torch

    import pyxla

    cache = torch.zeros(2, 64, 16, 8, 64).to(device)
    key, value, weight = torch.randn(4, 8, 64).to(device), torch.randn(4, 8, 64).to(device), torch.ones(512).to(device)
    graph_steps = max(1, steps // graphs)
    for number in range(1, steps + 1):
        rows = 4 + min(graphs - 1, (number - 1) // graph_steps)
        slots = (torch.arange(4) + 4 * number) % 1024
        result = step(key, value, cache, slots.to(device), torch.ones(rows, 512).to(device), weight)
        pyxla.sync()
        if number % every == 0:
            assert torch.isfinite(result.cpu()).all()
            yield number, _memory(device)


def _memory(device) -> tuple[float, ...]:
    import torch_xla.core.xla_model as xm

    pages = int(Path("/proc/self/statm").read_text().split()[1])
    host = pages * os.sysconf("SC_PAGESIZE") / MIB
    if os.environ["PJRT_DEVICE"] == "CPU":  # XLA's CPU does not count its memory; it is part of the host's
        return (host,)
    return host, xm.get_memory_info(device)["bytes_used"] / MIB


def _slope(xs: list[float], ys: list[float]) -> float:
    """Of the straight line through the points with the least squares."""
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((a - x) ** 2 for a in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread if spread else 0.0


if __name__ == "__main__":
    main()
