"""Inputs of rotary_and_cache, for its test and its benchmark; each with its reason."""

import torch
from pyxla_kernels._kv_cache.cases import FLOAT8, bad_stores, cache_and_slots, torch_store
from pyxla_kernels._rotary.cases import angle_table, bad_angles, drawn_positions, torch_rotated

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def arguments(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    tokens: int = 13,
    heads: tuple[int, int] = (4, 2),
    d: int = 64,
    rot_dim: int | None = None,
    max_position: int = 50,
    table_dtype: torch.dtype | None = None,
    cache_dtype: torch.dtype | None = None,
    index_dtype: torch.dtype = torch.int64,
    is_neox: bool = True,
    **options,
) -> dict:
    """Each head's values have another magnitude, so that a head in another's place shows.

    Args:
        heads: number of query heads and of kv heads.
        rot_dim: d, if None.
        table_dtype: qkv's, if None.
        cache_dtype: qkv's, if None.
        index_dtype: dtype of positions and slots.
        options: keyword arguments of `cache_and_slots`.
    """
    count = heads[0] + 2 * heads[1]
    qkv = torch.randn(tokens, count, d, generator=generator) * torch.logspace(-1, 1, count)[:, None]
    table = angle_table(max_position, d if rot_dim is None else rot_dim)
    return {
        "positions": drawn_positions(generator, tokens, max_position, index_dtype),
        "qkv": qkv.to(dtype),
        "cos_sin_cache": table.to(table_dtype or dtype),
        **cache_and_slots(generator, cache_dtype or dtype, tokens, heads[1], d, slot_dtype=index_dtype, **options),
        "is_neox": is_neox,
    }


CASES = [
    *(
        Case(
            f"{name}-{style}",
            "whole vectors",
            lambda g, dtype=dtype, style=style: arguments(g, dtype, is_neox=style == "neox"),
        )
        for name, dtype in DTYPES.items()
        for style in ("neox", "interleaved")
    ),
    *(
        Case(
            f"{name}-to-f8-scaled",
            "keys and values divided by the head's scale; large ones saturate",
            lambda g, dtype=dtype: arguments(g, dtype, heads=(3, 3), cache_dtype=FLOAT8, scaled=True),
        )
        for name, dtype in DTYPES.items()
    ),
    *(
        Case(
            f"bf16-{style}-partial",
            "the rest of each head is not rotated; one kv head",
            lambda g, style=style: arguments(
                g, torch.bfloat16, heads=(3, 1), d=80, rot_dim=32, is_neox=style == "neox"
            ),
        )
        for style in ("neox", "interleaved")
    ),
    *(
        Case(
            f"f16-{style}-d-7",
            "an odd head that no vector divides: one pair at a time",
            lambda g, style=style: arguments(g, torch.float16, d=7, rot_dim=6, is_neox=style == "neox"),
        )
        for style in ("neox", "interleaved")
    ),
    Case("bf16-to-f8", "no scales", lambda g: arguments(g, torch.bfloat16, cache_dtype=FLOAT8)),
    Case(
        "f32-to-f8-partial-d-5",
        "one element at a time into float8, with a scale for each head",
        lambda g: arguments(g, torch.float32, heads=(2, 3), d=5, rot_dim=4, cache_dtype=FLOAT8, scaled=True),
    ),
    Case(
        "bf16-merged", "the cache's heads and d in one dimension", lambda g: arguments(g, torch.bfloat16, merged=True)
    ),
    Case(
        "f16-to-f8-merged",
        "the same in float8",
        lambda g: arguments(g, torch.float16, cache_dtype=FLOAT8, scaled=True, merged=True),
    ),
    Case(
        "bf16-table-f32-int32",
        "a float32 table, as models have it; int32 positions and slots",
        lambda g: arguments(g, torch.bfloat16, table_dtype=torch.float32, index_dtype=torch.int32),
    ),
    Case(
        "bf16-300-tokens",
        "several pieces of the parallel loop, and more than one CTA",
        lambda g: arguments(g, torch.bfloat16, tokens=300, heads=(8, 2), d=128, blocks=20, block_size=16),
    ),
    Case(
        "bf16-72-heads",
        "more heads than a CTA takes: three CTAs per token",
        lambda g: arguments(g, torch.bfloat16, tokens=3, heads=(56, 8), d=128),
    ),
    Case("f32-no-token", "nothing to do", lambda g: arguments(g, torch.float32, tokens=0)),
    Case("f32-no-kv-head", "only queries", lambda g: arguments(g, torch.float32, heads=(2, 0))),
    Case("f32-rot-dim-0", "nothing is rotated", lambda g: arguments(g, torch.float32, rot_dim=0)),
    Case("bf16-no-element", "heads without elements", lambda g: arguments(g, torch.bfloat16, d=0)),
    Case(
        "f32-all-left-out",
        "the cache is unchanged, and every query is rotated",
        lambda g: changed(g, slot_mapping=torch.full((3,), -1, dtype=torch.int64)),
    ),
]


def changed(generator: torch.Generator, **changes) -> dict:
    """Good arguments with some of them replaced."""
    return arguments(generator, torch.float32, tokens=3, d=8, max_position=10, blocks=2, block_size=4) | changes


# Two tokens may not share a slot: it is undefined which one the slot gets.
FUZZ_KEEPS = ("slot_mapping",)

BAD_INPUTS = [
    BadInput(
        "qkv-dtype",
        lambda g: changed(g, qkv=torch.ones(3, 8, 8, dtype=torch.int32)),
        "rotary_and_cache: qkv: expected dtype float32 or bfloat16 or float16, got int32",
    ),
    BadInput(
        "qkv-rank",
        lambda g: changed(g, qkv=torch.ones(3, 64)),
        "rotary_and_cache: qkv: expected rank 3, got shape (3, 64)",
    ),
    BadInput(
        "qkv-without-query",
        lambda g: changed(g, qkv=torch.ones(3, 4, 8)),
        "rotary_and_cache: qkv: expected more heads than the 4 of keys and values, got 4",
    ),
    BadInput(
        "cache-heads",
        lambda g: changed(g, kv_cache=torch.ones(2, 2, 4, 4, 4)),
        "rotary_and_cache: kv_cache: expected heads of qkv's size 8, got shape (2, 2, 4, 4, 4)",
    ),
    BadInput(
        "cache-merged-heads",
        lambda g: changed(g, kv_cache=torch.ones(2, 2, 4, 12)),
        "rotary_and_cache: kv_cache: expected heads of qkv's size 8, got shape (2, 2, 4, 12)",
    ),
    *bad_angles("rotary_and_cache", changed),
    *bad_stores("rotary_and_cache", changed),
]


def torch_rotary_and_cache(
    positions: torch.Tensor,
    qkv: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_scales: torch.Tensor | None,
    is_neox: bool,
) -> torch.Tensor:
    """The same by torch's own ops, where rot_dim is d, the cache has qkv's dtype and every token has a slot."""
    kv_heads = kv_cache.shape[3]
    query, key, value = qkv.split([qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    query, key = (torch_rotated(x, positions, cos_sin_cache, is_neox) for x in (query, key))
    torch_store(key, value, kv_cache, slot_mapping)
    return query


def bench(name: str, tokens: int, why: str, *devices: str, cache_dtype: torch.dtype | None = None) -> Bench:
    """32 query and 8 kv heads of 128, blocks of 16; every token has a slot, and angles are float32, as in models."""

    def build(generator: torch.Generator) -> dict:
        blocks = tokens // 16 + 8
        options = {"heads": (32, 8), "d": 128, "max_position": 8192, "table_dtype": torch.float32}
        options |= {"blocks": blocks, "block_size": 16, "cache_dtype": cache_dtype, "scaled": cache_dtype is not None}
        made = arguments(generator, torch.bfloat16, tokens=tokens, **options)
        return made | {"slot_mapping": torch.randperm(blocks * 16, generator=generator)[:tokens]}

    def bytes_moved(a: dict) -> int:
        written = tokens * 128 * (32 * a["qkv"].itemsize + 16 * a["kv_cache"].itemsize)
        # Each token's row of the table is counted as read once.
        return nbytes(a["qkv"], a["positions"], a["slot_mapping"]) + tokens * 128 * 4 + written

    return Bench(
        f"{name}-{tokens}",
        why,
        build,
        bytes=bytes_moved,
        # Two products and a sum for each element of a query or key; a division for each that becomes float8.
        operations=lambda a: tokens * 128 * (3 * 40 + (16 if cache_dtype else 0)),
        peer=None if cache_dtype else torch_rotary_and_cache,
        devices=devices,
    )


BENCHES = [
    bench("bf16", 16384, "a prefill of 16384 tokens", "cuda"),
    bench("bf16-to-f8", 16384, "as above, into float8", "cuda", cache_dtype=FLOAT8),
    bench("bf16", 64, "a decode step of 64 sequences: latency", "cuda", "cpu"),
    bench("bf16", 1024, "a prefill of 1024 tokens", "cpu"),
]
