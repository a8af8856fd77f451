"""Inputs of paged_attention_flashinfer: those of paged_attention that it takes, so that the two are tested and timed
alike."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from pyxla_kernels._paged_attention.benches import BENCHES as SHARED_BENCHES
from pyxla_kernels._paged_attention.cases import (
    BATCHES,
    BF16,
    F16,
    F32,
    RAGGED,
    Bad,
    Batch,
    bad_lengths,
    batch,
    changed,
    shared_prefix,
    size,
)

from pyxla.benchmark import Bench
from pyxla.testing import Case

NOT_TAKEN = ("alibi_slopes", "sinks", "kv_scales")
Input = TypeVar("Input", Case, Bench)


def own(arguments: dict) -> dict:
    """The arguments without those that the op does not have."""
    return {name: value for name, value in arguments.items() if name not in NOT_TAKEN}


def narrowed(shared: Input) -> Input:
    """The same input, built without them."""
    return replace(shared, build=lambda generator: own(shared.build(generator)))


def taken(batches: list[Batch]) -> Iterator[Batch]:
    """The batches that the op takes; what is float32 in paged_attention is float16, each once."""
    seen = []
    for shared in batches:
        options = shared.options
        if options.get("d", 64) not in (64, 128) or options.keys() & {"alibi", "sinks", "cache_dtype"}:
            continue
        dtype = F16 if shared.dtype == F32 else shared.dtype
        if (key := (shared.lengths, dtype, options)) not in seen:
            seen.append(key)
            yield replace(shared, dtype=dtype)


OWN_BATCHES = [
    batch("d-128-ragged", "tiles of 64 rows, the last one of a sequence short", RAGGED, BF16, d=128, padding=(3, 2)),
    batch("d-128-cap-window", "the cap comes before the mask", RAGGED, F16, d=128, soft_cap=2.0, sliding_window=20),
    batch("d-128-prefill", "tiles of 128 rows, the diagonal across them", ((180, 180), (70, 300)), F16, d=128),
    batch("prefill-cap-window", "the same with both options", ((180, 180),), BF16, soft_cap=5.0, sliding_window=50),
    batch("decode", "tiles of 16 rows: four warps share the keys", ((1, 70), (1, 1), (1, 300), (0, 9)), BF16),
    batch("d-128-decode", "as above", ((1, 70), (1, 1), (1, 300), (0, 9)), F16, d=128, padding=(1, 3)),
    batch("decode-cap", "as above, with the cap", ((1, 70), (1, 300)), F16, soft_cap=1.0),
    batch("group-20", "a token's rows lie in two tiles of 16", ((1, 70), (1, 33)), BF16, heads=(20, 1)),
    batch("scale-small", "a mask that is no sum with a scaled logit", RAGGED, F16, scale=1e-6),
]

CASES = [
    *(narrowed(batch.case()) for batch in (*taken(BATCHES), *OWN_BATCHES)),
    narrowed(shared_prefix(BF16)),
]

BENCHES = [narrowed(bench) for bench in SHARED_BENCHES if not bench.name.startswith("f32")]


def good(**changes) -> dict:
    """As `changed`, of bfloat16."""
    return own(changed(BF16, **changes))


def size_like(*shape: int) -> torch.Tensor:
    return size(*shape).to(BF16)


bad = Bad("paged_attention_flashinfer", good)

BAD_INPUTS = [
    bad("dtype bfloat16 or float16", "float32", query=size(6, 8, 64)),
    bad("rank 3", "shape (6, 512)", query=size_like(6, 512)),
    bad("a last dimension of 64 or 128", "256", query=size_like(6, 8, 256)),
    bad("a last dimension of 64 or 128", "72", query=size_like(6, 8, 72)),
    bad("dtype bfloat16", "float16", kv_cache=size(2, 64, 8, 2, 64).half()),
    bad("dtype bfloat16", "float8_e4m3fn", kv_cache=size(2, 64, 8, 2, 64).to(torch.float8_e4m3fn)),
    bad("rank 4 or 5", "shape (2, 64, 1024)", kv_cache=size_like(2, 64, 1024)),
    bad("a block size in [1, 256]", "257", kv_cache=size_like(2, 4, 257, 2, 64)),
    bad("heads of query's size 64", "shape (2, 64, 8, 2, 32)", kv_cache=size_like(2, 64, 8, 2, 32)),
    bad("a positive multiple of 3 kv heads", "8", "query", kv_cache=size_like(2, 64, 8, 3, 64)),
    *bad_lengths(bad),
]
