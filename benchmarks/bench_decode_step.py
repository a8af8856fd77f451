"""Times the decoder's compiled decode step by context length: the bytes that it reads, its time, and the host's part.

python -m benchmarks.bench_decode_step --device cuda
"""

import os
import statistics
import time

import click

DEVICES = {"cpu": "CPU", "cuda": "CUDA"}
# What runs between two attentions: the model's choice, separate ops, fused_decoder_layer, fused_decoder_layer_rotary.
FUSED = {
    "auto": {},
    "no": {"fused": False},
    "layer": {"fused": True, "fused_rotary": False},
    "rotary": {"fused": True, "fused_rotary": True},
}
STEPS = 30
# The first one is not counted: a GPU that was idle is faster for a while.
ROUNDS = 4


@click.command()
@click.option("--device", type=click.Choice(list(DEVICES)), default="cuda")
@click.option("--config", default="llama-3-8b", help="tiny or llama-3-8b")
@click.option("--seqs", default=64, help="Sequences of a step")
@click.option("--contexts", default="1024,1024-4096,4096", help="One length for all sequences, or first-last")
@click.option("--fused", type=click.Choice(list(FUSED)), default="auto", help="The part that one op computes")
def main(device: str, config: str, seqs: int, contexts: str, fused: str) -> None:
    """Times steps that only decode; XLA_FLAGS as examples/llama sets them."""
    os.environ["PJRT_DEVICE"] = DEVICES[device]
    from examples.llama.__main__ import CUBLAS

    if device == "cuda":
        os.environ["XLA_FLAGS"] = f"{CUBLAS} {os.environ.get('XLA_FLAGS', '')}".strip()
    batches = {text: lengths_of(text, seqs) for text in contexts.split(",")}
    runner = _runner(config, device, seqs, max(map(max, batches.values())) + STEPS + 16, FUSED[fused])
    _check(runner)
    for text, lengths in batches.items():
        rounds = [timed_steps(runner, lengths) for _ in range(ROUNDS)][1:]
        seconds, host, read = (statistics.median(values) for values in zip(*rounds, strict=True))
        steps = [1e3 * step for step, _, _ in rounds]
        click.echo(
            f"context {text}: {1e3 * seconds:.2f} ms a step ({min(steps):.2f} to {max(steps):.2f}), "
            f"{read / 1e9:.2f} GB, {read / seconds / 1e9:.0f} GB/s; host {1e3 * host:.2f} ms"
        )


def lengths_of(text: str, seqs: int) -> list[int]:
    """Tokens of each sequence: of `1024`, or `1024-4096`, spread evenly."""
    first, _, last = text.partition("-")
    span = int(last or first) - int(first)
    return [int(first) + span * number // max(1, seqs - 1) for number in range(seqs)]


def _runner(config: str, device: str, seqs: int, longest: int, options: dict):
    import torch
    import torch_xla

    from examples.llama.config import CONFIGS, named
    from examples.llama.runner import ModelRunner
    from examples.llama.weights import load, random_weights

    shape, dtype = named(config, "config", CONFIGS), torch.bfloat16 if device == "cuda" else torch.float32
    model = load(shape, random_weights(shape, 0, dtype), dtype, torch_xla.device(), **options)
    return ModelRunner(model, max_seqs=seqs, max_length=longest, mode="compile")


def _check(runner) -> None:
    """Compares hidden states of the timed op with those of the separate ops, which tests compare with transformers."""
    import torch

    model, fused = runner.model, runner.model.fused
    if not fused:
        return
    sequence, tokens = runner.cache.open(), 8
    metadata = runner.cache.extend(
        [(sequence, tokens)], tokens=tokens, seqs=runner.max_seqs, max_blocks=runner.max_blocks
    )
    rows = torch.arange(tokens, dtype=torch.int32).to(runner.device)
    hidden = []
    for model.fused in (fused, False):
        hidden.append(model(rows, rows, runner.cache.layers, metadata).cpu().double())
    model.fused = fused
    runner.cache.close(sequence)
    got, want = hidden
    error = ((got - want).norm() / want.norm()).item()
    # In 32 small layers on the CPU, 16 bits give an error of 0.08; an operand times 1.5 gave 0.86.
    assert error < 0.25, f"wrong hidden states ({error:.2g}), not timed"
    click.echo(f"hidden states differ by {error:.2g} from those of the separate ops")


def timed_steps(runner, lengths: list[int]) -> tuple[float, float, float]:
    """Medians of a step's seconds, host seconds and bytes read. As in examples/llama, the host is one step ahead."""
    # The cache's contents do not matter: no token of these contexts is computed.
    sequences = [runner.cache.open() for _ in lengths]
    runner.cache.extend([*zip(sequences, lengths, strict=True)], tokens=sum(lengths), seqs=runner.max_seqs,
                        max_blocks=runner.max_blocks)  # fmt: skip
    last, step, seconds, host = None, runner.prepare(sequences), [], []
    before = time.perf_counter()
    for _ in range(STEPS):
        began = time.perf_counter()
        tokens = runner.submit(step)
        step = runner.prepare(sequences)
        host.append(time.perf_counter() - began)
        if last is not None:
            last.cpu()
        last, now = tokens, time.perf_counter()
        seconds.append(now - before)
        before = now
    last.cpu()
    # Not in the loop: the device would wait for the host.
    read = [bytes_read(runner, sum(lengths) + number * len(lengths)) for number in range(1, STEPS + 1)]
    for sequence in sequences:
        runner.cache.close(sequence)
    # The first steps compile.
    return statistics.median(seconds[5:]), statistics.median(host[5:]), statistics.median(read[5:])


def bytes_read(runner, tokens: int) -> int:
    """Bytes that a decode step reads: all weights except the embedding, of which it reads rows, and the cache.

    Args:
        runner: a ModelRunner.
        tokens: tokens of all sequences in the cache, including those that the step computes.
    """
    cache = runner.cache
    weights = sum(weight.nbytes for name, weight in runner.model.named_parameters() if name != "embedding")
    return weights + tokens * sum(layer.nbytes for layer in cache.layers) // (cache.num_blocks * cache.block_size)


if __name__ == "__main__":
    main()
