"""What the command does: makes the model, continues the prompts, prints the texts."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch_xla
import torch_xla.runtime
from torch_xla.backends import set_mat_mul_precision
from torch_xla.distributed.spmd import Mesh

from examples.llama.checkpoint import folder_weights
from examples.llama.config import CONFIGS, DTYPES, KV_CACHE_DTYPES, check, named, read_config
from examples.llama.generate import generate, require
from examples.llama.runner import ModelRunner
from examples.llama.tokenizer import Bytes, FromFolder
from examples.llama.weights import load, random_weights
from pyxla.nn import attention_mode
from pyxla.testing import compilations


def run(
    *,
    config: str,
    weights: str | None,
    prompts: tuple[str, ...],
    max_tokens: int,
    temperature: float,
    seed: int,
    mode: str | None,
    tensor_parallel: int,
    dtype: str | None,
    kv_cache_dtype: str,
) -> None:
    """Runs the command with these options.

    Raises:
        ArgumentError: a wrong option, or a prompt that does not fit.
        PyxlaError: an incomplete weights folder; no such device.
    """
    mode, device_type = attention_mode(mode), torch_xla.runtime.device_type()
    check.that(0 <= seed < 2**48, "seed", "a number in [0, 2**48)", seed)
    dtype = named(dtype or ("bfloat16" if device_type == "CUDA" else "float32"), "dtype", DTYPES)
    cache_dtype = named(kv_cache_dtype, "kv-cache-dtype", KV_CACHE_DTYPES)
    folder = None if weights is None else Path(weights)
    if folder is None:
        shape, tokenizer = named(config, "config", CONFIGS, "--weights FOLDER takes a config.json"), Bytes()
    else:
        shape, tokenizer = read_config(folder), FromFolder(folder)
    tokens = [tokenizer.encode(text) for text in prompts]
    require(shape, tokens, max_tokens, shape.max_position_embeddings)
    mesh = _mesh(tensor_parallel)
    if dtype == torch.float32 and device_type == "CUDA":
        # Otherwise XLA rounds to TF32.
        set_mat_mul_precision("highest")
    read = random_weights(shape, seed, dtype) if folder is None else folder_weights(folder, shape)
    runner = ModelRunner(
        load(shape, read, dtype, torch_xla.device(), mesh),
        max_seqs=len(tokens),
        max_length=max(map(len, tokens)) + max_tokens,
        kv_cache_dtype=cache_dtype,
        temperature=temperature,
        seed=seed,
        mode=mode,
    )
    started, compiled = time.perf_counter(), compilations()
    outputs = generate(runner, tokens, max_tokens, shape.eos_token_id)
    seconds, compiled = time.perf_counter() - started, compilations() - compiled
    for text, output in zip(prompts, outputs, strict=True):
        print(f"{text}{tokenizer.decode(output)}")
    count = sum(map(len, outputs))
    print(f"{count} tokens in {seconds:.2f} s, {compiled} graphs compiled ({mode}, {device_type})", file=sys.stderr)


def _mesh(devices: int) -> Mesh | None:
    """All devices of the process; those that share a model are adjacent."""
    if devices == 1:
        return None
    torch_xla.runtime.use_spmd()
    count = torch_xla.runtime.global_runtime_device_count()
    divides = devices >= 1 and count % devices == 0
    check.that(divides, "tensor-parallel", f"a divisor of {count}, the number of devices", devices)
    return Mesh(list(range(count)), (count // devices, devices), ("data", "model"))
