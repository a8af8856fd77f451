"""Times the decoder's compiled decode step on one device and on several, summed by XLA and by the op, side by side.

python -m benchmarks.bench_tensor_parallel --device cuda
python -m benchmarks.bench_tensor_parallel --device cpu --config tiny --seqs 8 --context 64

Each way runs in a process of its own, because SPMD cannot be turned off again. Weights are dummies, the same in all.
"""

import json
import os
import statistics
import subprocess
import sys
import zlib
from pathlib import Path

import click

from benchmarks.bench_decode_step import DEVICES, ROUNDS, STEPS, lengths_of, timed_steps

ROOT = Path(__file__).resolve().parent.parent
# Way -> arguments of the model; None: one device.
WAYS = {"one": None, "xla": {"fused_sums": False}, "op": {"fused_sums": True}}
TITLES = {"one": "one device", "xla": "{} devices, XLA's all-reduce", "op": "{} devices, fused_all_reduce_rms_norm"}
PROMPT, OUTPUT = 8, 16


@click.command()
@click.option("--device", type=click.Choice(list(DEVICES)), default="cuda")
@click.option("--config", default="llama-3-8b", help="tiny or llama-3-8b")
@click.option("--dtype", help="float32, bfloat16 or float16 [float32 on cpu, bfloat16 on cuda]")
@click.option("--seqs", default=64, help="Sequences of a step")
@click.option("--context", default="1024", help="One length for all sequences, or first-last")
@click.option("--devices", default=2, help="That share the model")
@click.option("--ways", default=",".join(WAYS), help="Which of one, xla, op, in this order")
@click.option("--way", type=click.Choice(list(WAYS)), hidden=True)
def main(device: str, way: str | None, **options) -> None:
    """Times steps that only decode; XLA_FLAGS as examples/llama sets them."""
    options["dtype"] = options["dtype"] or ("bfloat16" if device == "cuda" else "float32")
    if way:
        click.echo(json.dumps(_measure(way, device, options)))
        return
    ways = options["ways"].split(",")
    results = {}
    for name in ways:
        result = _run(name, device, options)
        if result is None:
            continue
        results[name] = result
        steps = [1e3 * step for step in result["steps"]]
        line = f"{TITLES[name].format(options['devices'])}: {statistics.median(steps):.2f} ms a step"
        line += f" ({min(steps):.2f} to {max(steps):.2f}), host {1e3 * result['host']:.2f} ms"
        if name != "one" and "one" in results:
            one = results["one"]
            line += f"; {statistics.median(one['steps']) / statistics.median(result['steps']):.2f} times as fast as one"
            line += f"; {_alike(one['tokens'], result['tokens'])}"
        click.echo(line)
    sys.exit(0 if len(results) == len(ways) else 1)


def _run(way: str, device: str, options: dict) -> dict | None:
    """What `_measure` returns in a process of its own; None if it fails."""
    count = 1 if WAYS[way] is None else options["devices"]
    own = {"PJRT_DEVICE": DEVICES[device]}
    if device == "cpu":
        own["CPU_NUM_DEVICES"] = str(count)
    else:
        own["PYXLA_VISIBLE_DEVICES"] = ",".join(map(str, range(count)))
        if way == "op":
            # As examples/llama does; XLA's all-reduce was not faster with it.
            own["PYXLA_ALLOCATOR"] = os.environ.get("PYXLA_ALLOCATOR", "vmm")
    arguments = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-P", "-m", "benchmarks.bench_tensor_parallel", f"--device={device}", f"--way={way}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **own}
    done = subprocess.run([*command, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        click.echo(f"{TITLES[way].format(options['devices'])}: failed with exit status {done.returncode}")
        return None
    return json.loads(done.stdout.splitlines()[-1])


def _measure(way: str, device: str, options: dict) -> dict:
    """Seconds of a step in each round, host seconds, and the tokens that follow short prompts."""
    from examples.llama.__main__ import CUBLAS

    if device == "cuda":
        os.environ["XLA_FLAGS"] = f"{CUBLAS} {os.environ.get('XLA_FLAGS', '')}".strip()
    import random

    import torch_xla.runtime
    from torch_xla.backends import set_mat_mul_precision
    from torch_xla.distributed.spmd import Mesh

    from examples.llama.config import CONFIGS, DTYPES, named
    from examples.llama.generate import generate
    from examples.llama.runner import ModelRunner
    from examples.llama.weights import load

    arguments, mesh = WAYS[way] or {}, None
    if WAYS[way] is not None:
        torch_xla.runtime.use_spmd()
        count = torch_xla.runtime.global_runtime_device_count()
        mesh = Mesh(list(range(count)), (count,), ("model",))
    if options["dtype"] == "float32" and device == "cuda":
        set_mat_mul_precision("highest")
    shape, dtype = named(options["config"], "config", CONFIGS), named(options["dtype"], "dtype", DTYPES)
    seqs, lengths = options["seqs"], lengths_of(options["context"], options["seqs"])
    model = load(shape, _dummies(shape, dtype), dtype, torch_xla.device(), mesh, **arguments)
    longest = max(*lengths, PROMPT + OUTPUT) + STEPS + 16
    runner = ModelRunner(model, max_seqs=seqs, max_length=longest, mode="compile")
    numbers = random.Random(0)
    prompts = [[numbers.randrange(shape.vocab_size) for _ in range(PROMPT)] for _ in range(seqs)]
    tokens = generate(runner, prompts, OUTPUT)
    rounds = [timed_steps(runner, lengths) for _ in range(ROUNDS)][1:]
    host = statistics.median(host for _, host, _ in rounds)
    return {"steps": [seconds for seconds, _, _ in rounds], "host": host, "tokens": tokens}


def _dummies(shape, dtype):
    """Weights by name, quickly: parts of one random block, from a place that depends on the name."""
    import torch

    from examples.llama.weights import hf_shapes

    shapes = hf_shapes(shape)
    # A prime, so that the rows of a weight differ.
    size = 8388593
    block = torch.empty(size).normal_(0, shape.initializer_range, generator=torch.Generator().manual_seed(0)).to(dtype)

    def read(name: str) -> torch.Tensor:
        if len(shapes[name]) == 1:
            return torch.ones(shapes[name], dtype=dtype)
        rows, columns = shapes[name]
        start = zlib.crc32(name.encode()) % size
        count = start + rows * columns
        return block.repeat(-(-count // size))[start:count].view(rows, columns)

    return read


def _alike(want: list[list[int]], got: list[list[int]]) -> str:
    """How many texts are those of one device: where 16 bits round another sum, a token may differ, and what follows."""
    if want == got:
        return "tokens equal"
    texts = sum(a == b for a, b in zip(want, got, strict=True))
    first = sum(a[0] == b[0] for a, b in zip(want, got, strict=True))
    return f"{texts} of {len(want)} texts equal, {first} first tokens"


if __name__ == "__main__":
    main()
