"""Inputs of reshape_and_cache, for its test and its benchmark; each with its reason."""

import torch
from pyxla_kernels._kv_cache.cases import FLOAT8, bad_stores, cache_and_slots, torch_store

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def arguments(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    tokens: int = 13,
    heads: int = 2,
    d: int = 64,
    cache_dtype: torch.dtype | None = None,
    **options,
) -> dict:
    """Keys and values, and a cache and slots by `cache_and_slots`.

    Args:
        cache_dtype: key's, if None.
        options: keyword arguments of `cache_and_slots`.
    """
    key, value = (torch.randn(tokens, heads, d, generator=generator).to(dtype) for _ in range(2))
    return {
        "key": key,
        "value": value,
        **cache_and_slots(generator, cache_dtype or dtype, tokens, heads, d, **options),
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
        "bf16-int32-slots", "slots in int32, not int64", lambda g: arguments(g, torch.bfloat16, slot_dtype=torch.int32)
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
        "several pieces of the parallel loop, and more than one CTA",
        lambda g: arguments(g, torch.float16, tokens=300, heads=8, d=128, blocks=20, block_size=16),
    ),
    Case("bf16-no-token", "nothing to write", lambda g: arguments(g, torch.bfloat16, tokens=0)),
    Case("bf16-no-element", "heads without elements", lambda g: arguments(g, torch.bfloat16, d=0)),
    Case(
        "f32-all-left-out",
        "the cache is unchanged",
        lambda g: changed(g, slot_mapping=torch.full((3,), -1, dtype=torch.int64)),
    ),
]


def changed(generator: torch.Generator, **changes) -> dict:
    """Good arguments with some of them replaced."""
    return arguments(generator, torch.float32, tokens=3, d=8, blocks=2, block_size=4) | changes


# Two tokens may not share a slot: it is undefined which one the slot gets.
FUZZ_KEEPS = ("slot_mapping",)

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
        "cache-heads",
        lambda g: changed(g, kv_cache=torch.ones(2, 2, 4, 8, 2)),
        "reshape_and_cache: kv_cache: expected heads as key's (3, 2, 8), got shape (2, 2, 4, 8, 2)",
    ),
    *bad_stores("reshape_and_cache", changed),
]


def torch_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_scales: torch.Tensor | None,
) -> None:
    """The same by torch's own ops, for a cache of key's dtype and a slot for every token."""
    torch_store(key, value, kv_cache, slot_mapping)


def bench(name: str, tokens: int, why: str, *devices: str, cache_dtype: torch.dtype | None = None) -> Bench:
    """8 kv heads of 128, blocks of 16; every token has a slot."""

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
