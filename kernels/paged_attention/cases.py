"""Inputs of paged_attention and paged_attention_lse, for their test and benchmark; each with its reason."""

import torch
from pyxla_kernels._paged_attention.bad_inputs import Bad, bad_lengths, changed, size, table_with
from pyxla_kernels._paged_attention.batches import integers
from pyxla_kernels._paged_attention.bench_list import BENCHES  # noqa: F401 - devtool bench looks for it here
from pyxla_kernels._paged_attention.cases import (
    ALL_OPTIONS,
    BATCHES,
    BF16,
    F8,
    F16,
    F32,
    LONG,
    LONGER,
    RAGGED,
    batch,
    shared_prefix,
)
from pyxla_kernels._paged_attention.fuzz import FUZZ_KEEPS, fuzz  # noqa: F401 - devtool fuzz looks for them here
from pyxla_kernels._paged_attention.fuzz import fuzz_lse as paged_attention_lse_fuzz  # noqa: F401
from pyxla_kernels._paged_attention.same_keys import SAME_KEYS
from pyxla_kernels.paged_attention.decoder_layer import STEPS  # noqa: F401 - devtool bench looks for it here

# On CUDA several CTAs compute each work tile of these calls, in shapes of their own.
FEW_TILES = [
    batch("few-tiles-d-128", "a context that is not split, as long as one can be", ((1, 5119),), BF16, d=128),
    batch("few-tiles-16-rows", "sixteen rows: S of a share's keys takes two blocks", ((4, 4000), (2, 700)), F16, d=128),
    batch("few-tiles-d-256", "three warps, two slices; two blocks", ((1, 4000),), BF16, d=256, heads=(4, 1)),
    batch(
        "few-tiles-d-72", "slices without a column; pages of 24", ((1, 900), (0, 0), (2, 33)), BF16, d=72, block_size=24
    ),
    batch(
        "few-tiles-cap-window",
        "tiles of keys of which tokens see some",
        ((3, 999),),
        F16,
        soft_cap=2.0,
        sliding_window=600,
    ),
    batch("few-tiles-f8-d-64", "64 keys in a KV tile", ((1, 3000), (3, 100)), F16, cache_dtype=F8, scaled=True),
    batch(
        "few-tiles-f8-d-256",
        "splits, and a prefill that is another kernel's",
        ((1, 6000), (30, 30), (1, 6000)),
        BF16,
        cache_dtype=F8,
        d=256,
        heads=(4, 1),
    ),
    batch("few-tiles-f8-d-128", "pages of one key", ((2, 1500),), BF16, cache_dtype=F8, d=128, block_size=1),
    batch(
        "few-tiles-all-options",
        "the splits of a context, with all options",
        ((2, 9000),),
        BF16,
        **ALL_OPTIONS | {"sliding_window": 6000},
    ),
]

MANY = ((8, 5300), (1, 300), (0, 0), (4, 77), *((8 - i % 4, 30 + 9 * i) for i in range(28)))
MANY_HEADS = {"heads": (32, 8)}
OPTIONS = MANY_HEADS | {"soft_cap": 5.0, "alibi": True, "sliding_window": 700, "sinks": True, "padding": (3, 2)}

# On CUDA decode's kernel computes up to 32 rows of a sequence, if there are many sequences, or few work tiles.
MORE_ROWS = [
    batch("32-rows-d-128", "splits; tiles with fewer rows", MANY, BF16, d=128, padding=(5, 2), **MANY_HEADS),
    batch(
        "32-rows-d-64",
        "KV tiles of 32 keys; the window begins in different ones",
        MANY,
        F16,
        sliding_window=133,
        **MANY_HEADS,
    ),
    batch(
        "32-rows-groups-of-7",
        "28 rows; vectors without a column; pages of 24",
        tuple((new // 2, max(context, 2)) for new, context in MANY),
        F16,
        d=72,
        heads=(56, 8),
        block_size=24,
    ),
    batch(
        "32-rows-mqa",
        "a token's 40 rows are two tiles",
        ((1, 5300), *((1, 3 * (i % 40) + 1) for i in range(255))),
        BF16,
        heads=(40, 1),
    ),
    batch("32-rows-options", "cap, bias, window, sinks, padding", MANY, BF16, d=128, **OPTIONS),
    batch("32-rows-few-tiles", "two tiles of sixteen rows", ((8, 3000), (5, 200), (3, 6000)), BF16, d=128),
    batch("32-rows-one-launch", "a call without prefill's kernel", ((7, 5900),), F16, d=128, heads=(24, 6)),
]

# On sm_90a prefill's keys are divided into splits, if a sequence has few new tokens on a context of some thousands.
PREFILL_SPLITS = [
    batch(
        "splits-d-128", "two splits; a shorter context", ((20, 2500), (1, 300), (9, 900)), BF16, d=128, padding=(3, 2)
    ),
    batch("splits-two-tiles", "tiles of rows with their own splits", ((70, 4200),), F16, d=128),
    batch("splits-d-64", "tiles of 192 rows; keys that not all rows see", ((60, 3100), (6, 2048)), F16),
    batch("splits-d-256", "KV tiles of 64 keys", ((20, 2400), (9, 3300)), F16, d=256, heads=(4, 1)),
    batch(
        "splits-many",
        "more splits than a warp loads at a time; one kv head",
        ((33, 12_000),),
        BF16,
        d=128,
        heads=(1, 1),
        block_size=32,
    ),
    batch(
        "splits-all-options",
        "the window begins within a split",
        ((20, 4500),),
        BF16,
        d=128,
        **ALL_OPTIONS | {"sliding_window": 2300},
    ),
]

CASES = [
    *(batch.case() for batch in BATCHES + FEW_TILES + MORE_ROWS + PREFILL_SPLITS),
    shared_prefix(F32),
    shared_prefix(BF16),
    *SAME_KEYS,
]

LSE_BATCHES = [
    batch("lse-f32", "every kind of sequence; padding rows have -inf", RAGGED, F32, padding=(3, 2)),
    batch("lse-bf16", "lse is float32, the other result bfloat16; a group of six", RAGGED, BF16, heads=(6, 1)),
    batch("lse-long-decode", "the sums of several ranges, merged", LONGER, F16),
    batch("lse-context-1", "no sum: lse is the logit itself", ((1, 1), (0, 0), (1, 1), (2, 2)), F32, d=120),
    batch("lse-large-logits", "e^x of a logit overflows", RAGGED, F32, spread=30.0, roundings=400),
    batch("lse-sinks-long-decode", "the sink is in the sum only once", LONG, F32, sinks=True),
    batch(
        "lse-cap-50",
        "a cap far above the logits; the first row's sum is its only logit, so an error of the cap's size shows",
        ((64, 64),),
        BF16,
        soft_cap=50.0,
        spread=0.01,
    ),
    batch(
        "lse-cap-small-scale",
        "a scale of 1e-4 under products of 40,000: its ninth power is no float32",
        ((64, 64),),
        F16,
        soft_cap=5.0,
        spread=5e3,
        scale=1e-4,
    ),
    batch("lse-splits", "the splits of a prefill", ((20, 2500), (8, 3100)), BF16, d=128),
    batch("lse-all-options", "cap, bias, window, sinks, float8, padding", RAGGED, BF16, **ALL_OPTIONS),
    batch("lse-padding-only", "num_seqs 0: zero and -inf", (), F32, padding=(4, 3)),
    batch("lse-empty-batch", "no sequences, no rows", (), BF16),
]

PAGED_ATTENTION_LSE_CASES = [batch.case(has_lse=True) for batch in LSE_BATCHES]

bad = Bad("paged_attention", changed)

BAD_INPUTS = [
    bad("dtype float32 or bfloat16 or float16", "int32", query=size(6, 8, 64).int()),
    bad("rank 3", "shape (6, 512)", query=size(6, 512)),
    bad("a last dimension of 8, 16, ... 256", "12", query=size(6, 8, 12)),
    bad("a last dimension of 8, 16, ... 256", "264", query=size(6, 8, 264)),
    bad("a last dimension of 8, 16, ... 256", "0", query=size(6, 8, 0)),
    bad("dtype float32 or float8_e4m3fn", "float16", kv_cache=size(2, 64, 8, 2, 64).half()),
    bad("rank 4 or 5", "shape (2, 64, 1024)", kv_cache=size(2, 64, 1024)),
    bad("a first dimension of 2, keys and values", "1", kv_cache=size(1, 64, 8, 2, 64)),
    bad("a block size in [1, 256]", "257", kv_cache=size(2, 4, 257, 2, 64)),
    bad("a block size in [1, 256]", "0", kv_cache=size(2, 4, 0, 2, 64)),
    bad("heads of query's size 64", "shape (2, 64, 8, 2, 32)", kv_cache=size(2, 64, 8, 2, 32)),
    bad("heads of query's size 64", "shape (2, 64, 8, 100)", kv_cache=size(2, 64, 8, 100)),
    bad("a positive multiple of 3 kv heads", "8", "query", kv_cache=size(2, 64, 8, 3, 64)),
    bad("a positive multiple of 0 kv heads", "8", "query", kv_cache=size(2, 64, 8, 0, 64)),
    bad("a positive multiple of 2 kv heads", "0", "query", query=size(6, 0, 64)),
    bad("dtype float32 or float8_e4m3fn", "float8_e5m2", kv_cache=size(2, 64, 8, 2, 64).to(torch.float8_e5m2)),
    bad("dtype float32", "bfloat16", alibi_slopes=size(8).bfloat16()),
    bad("shape (8,)", "(2,)", alibi_slopes=size(2)),
    bad("dtype float32", "int32", sinks=size(8).int()),
    bad("shape (8,)", "(8, 1)", sinks=size(8, 1)),
    bad("dtype float32", "float16", kv_scales=size(2, 2).half(), kv_cache=size(2, 64, 8, 2, 64).to(F8)),
    bad("shape (2, 2)", "(2, 8)", kv_scales=size(2, 8), kv_cache=size(2, 64, 8, 2, 64).to(F8)),
    bad("none, as kv_cache is not float8_e4m3fn", "a tensor", kv_scales=size(2, 2)),
    *bad_lengths(bad),
    # With blocks of 16, from which CUDA's decode kernel copies keys in groups of sixteen; those above have blocks of 8.
    bad(
        "a block id in [0, 64)",
        "64 at sequence 1, index 1",
        "block_tables",
        at_run_time=True,
        block_tables=table_with(1, 1, 64),
        kv_cache=size(2, 64, 16, 2, 64),
        context_lens=integers(40, 50, 3),
    ),
    # Contexts of which several CTAs compute each work tile.
    bad(
        "a block id in [0, 64)",
        "-1 at sequence 1, index 1",
        "block_tables",
        at_run_time=True,
        block_tables=table_with(1, 1, -1),
        kv_cache=size(2, 64, 256, 2, 64),
        context_lens=integers(40, 700, 3),
    ),
]
