"""Inputs of reshape_and_cache, for its test and its benchmark; each with its reason."""

import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

FLOAT8 = torch.float8_e4m3fn
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def arguments(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    tokens: int = 13,
    heads: int = 2,
    d: int = 64,
    blocks: int = 6,
    block_size: int = 8,
    cache_dtype: torch.dtype | None = None,
    scaled: bool = False,
    merged: bool = False,
    slot_dtype: torch.dtype = torch.int64,
) -> dict:
    """Tokens in a random order of slots, every fourth left out; what the cache holds already must stay.

    Args:
        cache_dtype: key's, if None.
        scaled: with kv_scales, each of its own size.
        merged: the cache's last two dimensions in one.
    """
    key, value = (torch.randn(tokens, heads, d, generator=generator).to(dtype) for _ in range(2))
    cache = torch.randn(2, blocks, block_size, heads, d, generator=generator).to(cache_dtype or dtype)
    slots = torch.randperm(blocks * block_size, generator=generator)[:tokens]
    slots[::4] = -1
    scales = (0.25 + torch.rand(2, heads, generator=generator)) * torch.tensor([[0.01], [10.0]]) if scaled else None
    return {
        "key": key,
        "value": value,
        "kv_cache": cache.flatten(3) if merged else cache,
        "slot_mapping": slots.to(slot_dtype),
        "kv_scales": scales,
    }


CASES = [
    *(
        Case(f"{name}-to-itself", "whole vectors", lambda g, dtype=dtype: arguments(g, dtype))
        for name, dtype in DTYPES.items()
    ),
    *(
        Case(
            f"{name}-to-f8-scaled",
            "divided by the head's scale; large keys saturate",
            lambda g, dtype=dtype: arguments(g, dtype, heads=3, cache_dtype=FLOAT8, scaled=True),
        )
        for name, dtype in DTYPES.items()
    ),
    Case("bf16-to-f8", "no scales", lambda g: arguments(g, torch.bfloat16, cache_dtype=FLOAT8)),
    Case("bf16-merged", "heads and d in one dimension", lambda g: arguments(g, torch.bfloat16, merged=True)),
    Case(
        "f16-to-f8-merged",
        "the same in float8",
        lambda g: arguments(g, torch.float16, cache_dtype=FLOAT8, scaled=True, merged=True),
    ),
    Case(
        "bf16-int32-slots", "the other dtype of slots", lambda g: arguments(g, torch.bfloat16, slot_dtype=torch.int32)
    ),
    Case("bf16-d-5", "no vector fits: one element at a time", lambda g: arguments(g, torch.bfloat16, heads=3, d=5)),
    Case(
        "f32-d-5-to-f8",
        "the same, with a scale for each head",
        lambda g: arguments(g, torch.float32, heads=3, d=5, cache_dtype=FLOAT8, scaled=True),
    ),
    Case("f32-block-1", "blocks of one slot", lambda g: arguments(g, torch.float32, blocks=40, block_size=1)),
    Case(
        "f16-300-tokens",
        "several pieces of the parallel loop, and more than one thread block",
        lambda g: arguments(g, torch.float16, tokens=300, heads=8, d=128, blocks=20, block_size=16),
    ),
    Case("bf16-no-token", "nothing to write", lambda g: arguments(g, torch.bfloat16, tokens=0)),
    Case("bf16-no-element", "heads without elements", lambda g: arguments(g, torch.bfloat16, d=0)),
    Case(
        "f32-all-left-out",
        "the cache stays as it is",
        lambda g: changed(g, slot_mapping=torch.full((3,), -1, dtype=torch.int64)),
    ),
]


def changed(generator: torch.Generator, **changes) -> dict:
    """Good arguments with some of them replaced."""
    return arguments(generator, torch.float32, tokens=3, d=8, blocks=2, block_size=4) | changes


BAD_INPUTS = [
    BadInput(
        "key-dtype",
        lambda g: changed(g, key=torch.ones(3, 2, 8, dtype=torch.int32)),
        "reshape_and_cache: key: expected dtype float32 or bfloat16 or float16, got int32",
    ),
    BadInput(
        "key-rank",
        lambda g: changed(g, key=torch.ones(3, 16)),
        "reshape_and_cache: key: expected rank 3, got shape (3, 16)",
    ),
    BadInput(
        "value-dtype",
        lambda g: changed(g, value=torch.ones(3, 2, 8, dtype=torch.float16)),
        "reshape_and_cache: value: expected dtype float32, got float16",
    ),
    BadInput(
        "value-shape",
        lambda g: changed(g, value=torch.ones(2, 2, 8)),
        "reshape_and_cache: value: expected shape (3, 2, 8), got (2, 2, 8)",
    ),
    BadInput(
        "cache-dtype",
        lambda g: changed(g, kv_cache=torch.ones(2, 2, 4, 2, 8, dtype=torch.bfloat16)),
        "reshape_and_cache: kv_cache: expected dtype float32 or float8_e4m3fn, got bfloat16",
    ),
    BadInput(
        "cache-rank",
        lambda g: changed(g, kv_cache=torch.ones(2, 8, 16)),
        "reshape_and_cache: kv_cache: expected rank 4 or 5, got shape (2, 8, 16)",
    ),
    BadInput(
        "cache-keys-only",
        lambda g: changed(g, kv_cache=torch.ones(1, 2, 4, 2, 8)),
        "reshape_and_cache: kv_cache: expected a first dimension of 2, keys and values, got 1",
    ),
    BadInput(
        "cache-heads",
        lambda g: changed(g, kv_cache=torch.ones(2, 2, 4, 8, 2)),
        "reshape_and_cache: kv_cache: expected heads as key's (3, 2, 8), got shape (2, 2, 4, 8, 2)",
    ),
    BadInput(
        "slots-dtype",
        lambda g: changed(g, slot_mapping=torch.zeros(3)),
        "reshape_and_cache: slot_mapping: expected dtype int32 or int64, got float32",
    ),
    BadInput(
        "slots-shape",
        lambda g: changed(g, slot_mapping=torch.zeros(4, dtype=torch.int64)),
        "reshape_and_cache: slot_mapping: expected shape (3,), got (4,)",
    ),
    BadInput(
        "scales-without-float8",
        lambda g: changed(g, kv_scales=torch.ones(2, 2)),
        "reshape_and_cache: kv_scales: expected none, as kv_cache is not float8_e4m3fn, got a tensor",
    ),
    BadInput(
        "scales-shape",
        lambda g: changed(g, kv_cache=torch.ones(2, 2, 4, 2, 8).to(FLOAT8), kv_scales=torch.ones(2)),
        "reshape_and_cache: kv_scales: expected shape (2, 2), got (2,)",
    ),
    BadInput(
        "slot-too-large",
        lambda g: changed(g, slot_mapping=torch.tensor([0, -1, 8])),
        "reshape_and_cache: slot_mapping: expected -1 or a slot in [0, 8), got 8 at token 2",
        at_run_time=True,
    ),
    BadInput(
        "slot-minus-2",
        lambda g: changed(g, slot_mapping=torch.tensor([0, -2, 1], dtype=torch.int32)),
        "reshape_and_cache: slot_mapping: expected -1 or a slot in [0, 8), got -2 at token 1",
        at_run_time=True,
    ),
]


def torch_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_scales: torch.Tensor | None,
) -> None:
    """torch's own ops, for a cache of key's dtype and slots that are all in use."""
    rows = kv_cache.flatten(1, 2)
    rows[0].index_copy_(0, slot_mapping, key)
    rows[1].index_copy_(0, slot_mapping, value)


def bench(name: str, tokens: int, why: str, *devices: str, cache_dtype: torch.dtype | None = None) -> Bench:
    """8 kv heads of 128, pages of 16; every token has a slot."""

    def build(generator: torch.Generator) -> dict:
        blocks = tokens // 16 + 8
        options = {"heads": 8, "d": 128, "blocks": blocks, "block_size": 16, "cache_dtype": cache_dtype}
        made = arguments(generator, torch.bfloat16, tokens=tokens, scaled=cache_dtype is not None, **options)
        return made | {"slot_mapping": torch.randperm(blocks * 16, generator=generator)[:tokens]}

    def bytes_moved(a: dict) -> int:
        return 2 * a["key"].numel() * (a["key"].itemsize + a["kv_cache"].itemsize) + nbytes(a["slot_mapping"])

    return Bench(
        f"{name}-{tokens}",
        why,
        build,
        bytes=bytes_moved,
        # A division for each element that becomes float8.
        operations=lambda a: 2 * a["key"].numel() if a["kv_scales"] is not None else 0,
        peer=None if cache_dtype else torch_reshape_and_cache,
        devices=devices,
    )


BENCHES = [
    bench("bf16", 65536, "a prefill of 65536 tokens", "cuda"),
    bench("bf16-to-f8", 65536, "as above, into float8", "cuda", cache_dtype=FLOAT8),
    bench("bf16", 64, "a decode step of 64 sequences: latency", "cuda", "cpu"),
    bench("bf16", 2048, "a prefill of 2048 tokens", "cpu"),
]
