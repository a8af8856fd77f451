"""The command: makes a model, serves the requests, and reports on the run."""

from __future__ import annotations

import os
import random
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch_xla
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch_xla.backends import set_mat_mul_precision
from torch_xla.distributed.spmd import Mesh

import pyxla
from examples.llama.config import KV_CACHE_DTYPES, LlamaConfig, named_config, parse_dtype, read_config
from examples.llama.engine import Engine
from examples.llama.scheduler import Request, check
from examples.llama.tokenizer import Bytes, FromFolder, Tokenizer
from examples.llama.weights import folder_weights, load, random_weights
from pyxla.inspection.profile import DeviceTimes, profiling
from pyxla.nn import attention_mode
from pyxla.testing import compilations

# Tokens per request in the profiled run: the events of a long run would not fit into the profiler.
PROFILED_TOKENS = 32


@dataclass(frozen=True)
class Options:
    """The command's options, by name."""

    config: str
    weights: str | None
    prompts: tuple[str, ...]
    random_requests: int
    prompt_tokens: str
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    mode: str | None
    tensor_parallel: int
    dtype: str | None
    kv_cache_dtype: str
    max_seqs: int
    max_step_tokens: int
    max_length: int
    block_size: int
    num_blocks: int | None
    check: bool


def serve(options: Options) -> bool:
    """Runs the command; returns whether its checks held.

    Args:
        options: of the command.

    Raises:
        ArgumentError: a wrong option, or a prompt that does not fit.
        PyxlaError: an incomplete weights folder; no such device.
    """
    console = Console(stderr=True, highlight=False)
    attention_mode(options.mode)
    check.that(options.max_seqs >= 1, "max-seqs", "a count of 1 or more", options.max_seqs)
    check.that(0 <= options.seed < 2**48, "seed", "a number in [0, 2**48)", options.seed)
    config, tokenizer = _config(options)
    requests = _requests(options, config, tokenizer)
    engine = _engine(options, config)
    for request in requests:
        engine.scheduler.require(request)
    with _progress(console) as progress:
        compiling = progress.add_task("compiling", total=len(engine.buckets))
        with pyxla.inspecting(private=False) as compiled:
            slowest, started = 0.0, time.perf_counter()
            for _ in engine.warm_up(sampling=options.temperature > 0):
                now = time.perf_counter()
                slowest, started = max(slowest, now - started), now
                progress.advance(compiling)
        serving = progress.add_task("tokens", total=sum(request.max_tokens for request in requests))
        for request in requests:
            engine.submit(request)
        for advanced in engine.run():
            progress.advance(serving, len(advanced))
        progress.update(serving, total=engine.counts.generated_tokens)
    for request, text in zip(requests, options.prompts, strict=False):
        print(f"{text}{tokenizer.decode(request.output)}")
    _report(console, engine, len(compiled.modules), slowest)
    shorter = [_again(r, max_tokens=min(r.max_tokens, PROFILED_TOKENS)) for r in requests[: 2 * options.max_seqs]]
    with profiling(compiled) as times:
        engine.generate(shorter)
    _report_ops(console, times)
    return not options.check or _same_alone(console, engine, requests)


def _config(options: Options) -> tuple[LlamaConfig, Tokenizer]:
    if options.weights is None:
        return named_config(options.config), Bytes()
    folder = Path(options.weights)
    return read_config(folder), FromFolder(folder)


def _requests(options: Options, config: LlamaConfig, tokenizer: Tokenizer) -> list[Request]:
    prompts = [tokenizer.encode(text) for text in options.prompts]
    lengths = re.fullmatch(r"(\d+):(\d+)", options.prompt_tokens)
    in_order = lengths is not None and 1 <= int(lengths[1]) <= int(lengths[2])
    check.that(in_order, "prompt-tokens", "LOW:HIGH, 1 <= LOW <= HIGH", options.prompt_tokens)
    numbers = random.Random(options.seed)
    for _ in range(options.random_requests):
        length = numbers.randint(int(lengths[1]), int(lengths[2]))
        prompts.append([numbers.randrange(config.vocab_size) for _ in range(length)])
    check.that(bool(prompts), "requests", "--prompt TEXT or --random N", "none")
    return [
        Request(
            prompt,
            options.max_tokens,
            options.temperature,
            options.top_k,
            options.top_p,
            # Equal prompts are drawn differently.
            options.seed + number,
            frozenset(config.eos_token_id),
        )
        for number, prompt in enumerate(prompts)
    ]


def _engine(options: Options, config: LlamaConfig) -> Engine:
    mesh = _mesh(options.tensor_parallel)
    on_cuda = os.environ["PJRT_DEVICE"] == "CUDA"
    dtype = parse_dtype(options.dtype or ("bfloat16" if on_cuda else "float32"))
    if dtype == torch.float32 and on_cuda:
        # Otherwise XLA rounds to TF32.
        set_mat_mul_precision("highest")
    if options.weights is None:
        read = random_weights(config, options.seed, dtype)
    else:
        read = folder_weights(Path(options.weights), config)
    enough = options.max_seqs * -(-options.max_length // max(1, options.block_size))
    return Engine(
        load(config, read, dtype, torch_xla.device(), mesh),
        num_blocks=enough if options.num_blocks is None else options.num_blocks,
        block_size=options.block_size,
        max_seqs=options.max_seqs,
        max_step_tokens=options.max_step_tokens,
        max_length=options.max_length,
        kv_cache_dtype=parse_dtype(options.kv_cache_dtype, "kv-cache-dtype", KV_CACHE_DTYPES),
        mode=options.mode,
    )


def _mesh(devices: int) -> Mesh | None:
    """All devices of the process; those that share a model are adjacent."""
    if devices == 1:
        return None
    torch_xla.runtime.use_spmd()
    count = torch_xla.runtime.global_runtime_device_count()
    divides = devices >= 1 and count % devices == 0
    check.that(divides, "tensor-parallel", f"a divisor of {count}, the number of devices", devices)
    return Mesh(list(range(count)), (count // devices, devices), ("data", "model"))


def _again(request: Request, **changes) -> Request:
    return replace(request, output=[], is_done=False, **changes)


def _same_alone(console: Console, engine: Engine, requests: list[Request]) -> bool:
    """Serves the requests one at a time and compares; afterwards all blocks must be free and nothing compiled."""
    before = compilations()
    different = [r for r in requests if engine.generate([_again(r)]) != [r.output]]
    compiled = compilations() - before
    held = engine.cache.num_blocks - engine.cache.free_blocks
    console.print(
        f"check: {len(requests) - len(different)} of {len(requests)} requests have the same tokens alone, "
        f"{held} blocks held, {compiled} compilations"
    )
    return not different and not held and not compiled


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _report(console: Console, engine: Engine, compiled: int, slowest: float) -> None:
    counts = engine.counts
    console.print(
        f"{counts.generated_tokens} tokens in {counts.seconds:.2f} s, {counts.generated_tokens / counts.seconds:.1f} "
        f"tokens/s (mode {engine.mode}, {os.environ['PJRT_DEVICE']})\n"
        f"{counts.steps} steps: {counts.rows} rows, of which {counts.prompt_tokens} of prompts; "
        f"{engine.scheduler.shared_tokens} tokens of prompts shared\n"
        f"{compiled} graphs compiled before, for {len(engine.buckets)} buckets of rows "
        f"({', '.join(map(str, engine.buckets))}); {counts.compilations} while serving\n"
        f"the slowest bucket was ready after {slowest:.1f} s"
    )
    if counts.decode_steps:
        per_step = counts.decode_seconds / counts.decode_steps
        rate = counts.decode_bytes / counts.decode_seconds / 1e9
        console.print(
            f"{counts.decode_steps} steps of decoding alone: {1e3 * per_step:.3f} ms a step, "
            f"{rate:.1f} GB/s of weights, keys and values"
        )


def _report_ops(console: Console, times: DeviceTimes) -> None:
    if not times.seconds:
        console.print("no times per op: XLA recorded none on this device")
        return
    table = Table(title=f"time on the device (the same requests, up to {PROFILED_TOKENS} tokens each)", box=None)
    for name in ("op", "calls", "ms", "share"):
        table.add_column(name, justify="left" if name == "op" else "right")
    total = times.seconds.total()
    for op, seconds in times.seconds.most_common():
        table.add_row(op, str(times.calls[op]), f"{1e3 * seconds:.2f}", f"{seconds / total:.1%}")
    console.print(table)
    console.print(f"the device was busy {times.busy:.1%} of the time, with the profiler on")
