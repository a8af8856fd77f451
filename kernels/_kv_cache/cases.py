"""Caches, slots and bad inputs for the tests and benchmarks of the ops that write keys and values."""

from collections.abc import Callable

import torch

from pyxla.testing import BadInput

FLOAT8 = torch.float8_e4m3fn


def cache_and_slots(
    generator: torch.Generator,
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    d: int,
    *,
    blocks: int = 6,
    block_size: int = 8,
    scaled: bool = False,
    merged: bool = False,
    slot_dtype: torch.dtype = torch.int64,
) -> dict:
    """kv_cache, slot_mapping and kv_scales: the tokens have slots in random order, and every fourth token has none.

    The cache is full of random numbers, and those in other slots must stay.

    Args:
        dtype: the cache's dtype.
        heads: number of kv heads.
        scaled: return random kv_scales instead of None.
        merged: merge the cache's last two dimensions.
    """
    cache = torch.randn(2, blocks, block_size, heads, d, generator=generator).to(dtype)
    slots = torch.randperm(blocks * block_size, generator=generator)[:tokens]
    slots[::4] = -1
    scales = (0.25 + torch.rand(2, heads, generator=generator)) * torch.tensor([[0.01], [10.0]]) if scaled else None
    return {
        "kv_cache": cache.flatten(3) if merged else cache,
        "slot_mapping": slots.to(slot_dtype),
        "kv_scales": scales,
    }


def torch_store(key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """The same by torch's own ops, for a cache of key's dtype and a slot for every token."""
    rows = kv_cache.flatten(1, 2)
    rows[0].index_copy_(0, slot_mapping, key)
    rows[1].index_copy_(0, slot_mapping, value)


def bad_stores(op: str, changed: Callable[..., dict]) -> list[BadInput]:
    """Caches, slots and scales that an op rejects.

    Args:
        op: the op's name.
        changed: returns the op's good arguments with some replaced: float32, 3 tokens, 2 kv heads of 8, 2 blocks of 4.
    """
    return [
        BadInput(
            "cache-dtype",
            lambda g: changed(g, kv_cache=torch.ones(2, 2, 4, 2, 8, dtype=torch.bfloat16)),
            f"{op}: kv_cache: expected dtype float32 or float8_e4m3fn, got bfloat16",
        ),
        BadInput(
            "cache-rank",
            lambda g: changed(g, kv_cache=torch.ones(2, 8, 16)),
            f"{op}: kv_cache: expected rank 4 or 5, got shape (2, 8, 16)",
        ),
        BadInput(
            "cache-keys-only",
            lambda g: changed(g, kv_cache=torch.ones(1, 2, 4, 2, 8)),
            f"{op}: kv_cache: expected a first dimension of 2, keys and values, got 1",
        ),
        BadInput(
            "slots-dtype",
            lambda g: changed(g, slot_mapping=torch.zeros(3)),
            f"{op}: slot_mapping: expected dtype int32 or int64, got float32",
        ),
        BadInput(
            "slots-shape",
            lambda g: changed(g, slot_mapping=torch.zeros(4, dtype=torch.int64)),
            f"{op}: slot_mapping: expected shape (3,), got (4,)",
        ),
        BadInput(
            "scales-without-float8",
            lambda g: changed(g, kv_scales=torch.ones(2, 2)),
            f"{op}: kv_scales: expected none, as kv_cache is not float8_e4m3fn, got a tensor",
        ),
        BadInput(
            "scales-shape",
            lambda g: changed(g, kv_cache=torch.ones(2, 2, 4, 2, 8).to(FLOAT8), kv_scales=torch.ones(2)),
            f"{op}: kv_scales: expected shape (2, 2), got (2,)",
        ),
        BadInput(
            "slot-too-large",
            lambda g: changed(g, slot_mapping=torch.tensor([0, -1, 8])),
            f"{op}: slot_mapping: expected -1 or a slot in [0, 8), got 8 at token 2",
            at_run_time=True,
        ),
        BadInput(
            "slot-minus-2",
            lambda g: changed(g, slot_mapping=torch.tensor([0, -2, 1], dtype=torch.int32)),
            f"{op}: slot_mapping: expected -1 or a slot in [0, 8), got -2 at token 1",
            at_run_time=True,
        ),
    ]
