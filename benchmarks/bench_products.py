"""Times the matrix products of Llama 3 8B's shape: XLA's beside torch's and the best of cuBLAS's algorithms.

python -m benchmarks.bench_products --device cuda

Every candidate is a graph of some products, each with weights of its own, so that none reads from L2; the graphs run in
turn. XLA_FLAGS tells which products XLA gives to its own Triton kernels. The best algorithm needs
`pip install nvmath-python`, which times what cuBLAS's heuristics propose; without it, and on the CPU, it is left out.
"""

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

import click
import torch
import torch_xla

import pyxla
from benchmarks.paired import paired, ratio

# (outputs, inputs) of a layer's products, and of the logits.
PRODUCTS = {
    "qkv": (6144, 4096),
    "out": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "logits": (128256, 4096),
}
# Of all weights and results of a graph.
GRAPH_BYTES = 6 << 30
MOST_PRODUCTS = 32
# Launched one after the other before the host waits, so that its work overlaps the device's.
LAUNCHES = 5
FINALISTS = 6
DTYPE = torch.bfloat16


class Operands(NamedTuple):
    """The operands of a graph's products."""

    xs: list[torch.Tensor]
    weights: list[torch.Tensor]

    @classmethod
    def make(cls, rows: int, outputs: int, inputs: int, count: int) -> "Operands":
        xs = [torch.randn(rows, inputs).to(DTYPE) for _ in range(count)]
        weights = [torch.randn(outputs, inputs).mul(1 / math.sqrt(inputs)).to(DTYPE) for _ in range(count)]
        return cls(xs, weights)

    def to(self, device: torch.device | str) -> "Operands":
        return Operands(*([tensor.to(device) for tensor in part] for part in self))


def products(xs: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """x W^T of each pair."""
    return [torch.nn.functional.linear(x, weight) for x, weight in zip(xs, weights, strict=True)]


def by_xla(operands: Operands) -> tuple[Callable[[], object], torch.Tensor]:
    """A call that waits for its end, and the first result."""
    on_device = operands.to(torch_xla.device())
    compiled = torch.compile(products, backend="openxla")

    def call() -> None:
        for _ in range(LAUNCHES):
            compiled(*on_device)
        pyxla.sync()

    return call, compiled(*on_device)[0].cpu()


def by_torch(operands: Operands, device: str) -> tuple[Callable[[], object], torch.Tensor]:
    """As `by_xla`; on a GPU a CUDA graph."""
    on_device = operands.to(device)
    if device == "cpu":
        return (lambda: [products(*on_device) for _ in range(LAUNCHES)]), products(*on_device)[0]
    return captured(lambda: products(*on_device))


def by_best_algorithm(operands: Operands) -> tuple[Callable[[], object], torch.Tensor]:
    """As `by_torch`, with the fastest of the algorithms that cuBLAS proposes. Raises ImportError without nvmath."""
    from nvmath.linalg.advanced import Matmul, MatmulPlanPreferences

    calls = [Matmul(x, weight.T) for x, weight in zip(*operands.to("cuda"), strict=True)]
    calls[0].plan(preferences=MatmulPlanPreferences(limit=64))
    # It times one pair again and again, whose weight may stay in L2: so the first ones are timed in the graph.
    calls[0].autotune(iterations=10)
    fastest = math.inf
    for algorithm in calls[0].algorithms[:FINALISTS]:
        for call in calls:
            call.plan(algorithms=[algorithm])
        graph = captured(lambda: [call.execute() for call in calls])
        # Of the graphs only the best is kept, as each has results of its own.
        if (took := statistics.median(paired({"": graph[0]}, rounds=5)[""])) < fastest:
            fastest, best = took, graph
    return best


def captured(run: Callable[[], list[torch.Tensor]]) -> tuple[Callable[[], object], torch.Tensor]:
    """A CUDA graph's call, and its first result."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()  # before the capture, because the first use creates objects
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        results = run()

    def call() -> None:
        for _ in range(LAUNCHES):
            graph.replay()
        torch.cuda.synchronize()

    call.operands = run  # the graph reads their memory, and does not keep it
    call()
    return call, results[0].cpu()


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), required=True)
@click.option("--rows", multiple=True, type=int, default=(64, 256, 4096, 8192))
@click.option("--product", "names", multiple=True, type=click.Choice([*PRODUCTS]), default=(*PRODUCTS,))
@click.option("--rounds", default=30)
def main(device: str, rows: tuple[int, ...], names: tuple[str, ...], rounds: int) -> None:
    """Prints microseconds a product, and XLA's time over the best one's."""
    torch.manual_seed(0)
    for count in rows:
        for name in names:
            outputs, inputs = PRODUCTS[name]
            each = 2 * (outputs * inputs + count * (outputs + inputs))
            number = max(1, min(MOST_PRODUCTS, GRAPH_BYTES // each)) if device == "cuda" else 1
            measure(f"{name} {count}x{inputs}x{outputs}", Operands.make(count, outputs, inputs, number), device, rounds)


def measure(name: str, operands: Operands, device: str, rounds: int) -> None:
    """Compares the candidates with float32, times them in turn and prints a line."""
    want = torch.nn.functional.linear(operands.xs[0].float(), operands.weights[0].float())
    calls: dict[str, Callable[[], object]] = {}
    makers = {"xla": lambda: by_xla(operands), "torch": lambda: by_torch(operands, device)}
    if device == "cuda":
        makers["best"] = lambda: by_best_algorithm(operands)
    for candidate, make in makers.items():
        try:
            call, got = make()
        except ImportError as error:
            click.echo(f"{name}: {candidate}: {error}")
            continue
        # One rounding of the result, and of a sum in another order.
        torch.testing.assert_close(got.float(), want, rtol=2**-7, atol=2**-7, msg=f"{name}: {candidate}: wrong numbers")
        calls[candidate] = call
    times = paired(calls, rounds=rounds)
    number = len(operands.xs)
    launched = LAUNCHES * number
    cells = [f"{candidate} {1e6 * statistics.median(each) / launched:9.1f} us" for candidate, each in times.items()]
    best = min(calls.keys() - {"xla"}, key=lambda candidate: statistics.median(times[candidate]))
    middle, low, high = ratio(times, "xla", best)
    click.echo(f"{name:28} {'   '.join(cells)}   xla / {best} {middle:.3f} ({low:.3f} to {high:.3f}), {number} a graph")


if __name__ == "__main__":
    main()
