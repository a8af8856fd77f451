"""Inputs of paged_attention and of the other ops that compute it, for their tests; each with its reason."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from pyxla_kernels._paged_attention.batches import ROUNDED_WEIGHTS, arguments, repeated, torch_attention

from pyxla.op.arguments import dtype_name
from pyxla.testing import Case

F32, BF16, F16, F8 = torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn

# (new tokens, context) of each sequence.
RAGGED = ((1, 97), (40, 40), (1, 16), (0, 33), (17, 50), (1, 1), (5, 130), (0, 0))
# Up to three ranges of keys on the host, whose results are merged.
LONG = ((1, 2100), (3, 1025))
# Several such ranges, and on CUDA, in 16 bits, three splits.
LONGER = ((1, 5200), (3, 5400))
# All options at once, for the order in which they apply.
ALL_OPTIONS = {
    "soft_cap": 5.0,
    "alibi": True,
    "sliding_window": 30,
    "sinks": True,
    "cache_dtype": F8,
    "scaled": True,
    "padding": (3, 2),
}


@dataclass(frozen=True)
class Batch:
    """A case whose arguments are not made yet, so that an op can first decide whether it takes them.

    Attributes:
        lengths: (new tokens, context) of each sequence.
        options: keyword arguments of `arguments`.
        copies: how many times the batch has its sequences.
    """

    name: str
    why: str
    lengths: Iterable[tuple[int, int]]
    dtype: torch.dtype
    options: dict[str, Any]
    roundings: int = 16
    cuda_size: bool = False
    copies: int = 1

    def case(self, has_lse: bool = False) -> Case:
        """The case, with torch's attention as peer where torch has all that the case needs."""
        has_peer = not has_lse and not self.options.keys() & {"soft_cap", "alibi", "sinks", "cache_dtype"}
        return Case(
            self.name,
            self.why,
            lambda g: repeated(arguments(g, self.lengths, self.dtype, **self.options), self.copies),
            peer=torch_attention if has_peer else None,
            roundings=self.roundings,
            cuda_roundings=ROUNDED_WEIGHTS.get(self.dtype),
            cuda_size=self.cuda_size,
        )


def batch(
    name: str,
    why: str,
    lengths: Iterable[tuple[int, int]],
    dtype: torch.dtype,
    roundings: int = 16,
    cuda_size: bool = False,
    copies: int = 1,
    **options: Any,
) -> Batch:
    return Batch(name, why, lengths, dtype, options, roundings, cuda_size, copies)


def shared_prefix(dtype: torch.dtype) -> Case:
    """Three sequences whose first two blocks are the same."""

    def build(generator: torch.Generator) -> dict:
        a = arguments(generator, [(3, 40), (1, 48), (20, 41)], dtype, block_size=8)
        a["block_tables"][:, :2] = a["block_tables"][0, :2]
        return a

    roundings = ROUNDED_WEIGHTS.get(dtype)
    return Case(
        f"shared-prefix-{dtype_name(dtype)}",
        "block ids repeat across sequences",
        build,
        peer=torch_attention,
        cuda_roundings=roundings,
    )


# For the kernels on tensor cores, which take only 16-bit dtypes and divide the work into tiles of rows and keys.
TILES = [
    batch("d-128-ragged", "the last tiles of rows are not full; heads of 128", RAGGED, BF16, d=128, padding=(3, 2)),
    batch("d-128-cap-window", "the cap comes before the mask", RAGGED, F16, d=128, soft_cap=2.0, sliding_window=20),
    batch("d-128-prefill", "several tiles of rows, crossed by the diagonal", ((180, 180), (70, 300)), F16, d=128),
    batch("prefill-cap-window", "as above, with cap and window", ((180, 180),), BF16, soft_cap=5.0, sliding_window=50),
    batch("decode", "one row per sequence: warps share the keys", ((1, 70), (1, 1), (1, 300), (0, 9)), BF16),
    batch("d-128-decode", "as above", ((1, 70), (1, 1), (1, 300), (0, 9)), F16, d=128, padding=(1, 3)),
    batch("decode-cap", "as above, with the cap", ((1, 70), (1, 300)), F16, soft_cap=1.0),
    batch("group-20", "a token's 20 rows are in two tiles of 16", ((1, 70), (1, 33)), BF16, heads=(20, 1)),
    batch("scale-small", "a tiny scale: a mask added before scaling would vanish", RAGGED, F16, scale=1e-6),
    batch("scale-negative-bf16", "the largest logit belongs to the smallest product", RAGGED, BF16, scale=-0.2),
    batch("window-1-f16", "a tile in which each row sees one key, its own", RAGGED, F16, sliding_window=1),
    batch("merged-bf16", "the cache's last two dimensions merged", RAGGED, BF16, merged=True),
    batch("padding-only-f16", "num_seqs 0: no tile has a row", (), F16, padding=(4, 3)),
]

BATCHES = [
    *(
        batch(
            f"ragged-{name}",
            "prefills, decodes and padding in one batch: the op's main job",
            RAGGED,
            dtype,
            padding=(3, 2),
        )
        for name, dtype in {"f32": F32, "bf16": BF16, "f16": F16}.items()
    ),
    batch("page-1", "a block per token", RAGGED, BF16, block_size=1),
    batch("page-8", "several blocks per vector of keys", RAGGED, F16, block_size=8),
    batch("page-32", "context 33: only one slot of the second block", ((1, 33), (33, 33), (2, 32)), F32, block_size=32),
    batch("page-128", "a block as long as the host's KV tile", ((1, 200), (9, 129)), BF16, block_size=128),
    batch(
        "page-256", "the largest block; contexts around its end", ((1, 256), (3, 257), (2, 255)), F16, block_size=256
    ),
    batch("d-8", "a row is one vector, for one lane of a warp", RAGGED, F32, d=8),
    batch("d-72", "nine times eight: an odd number of vectors, idle lanes", RAGGED, BF16, d=72),
    batch("d-80", "ten times eight", RAGGED, F16, d=80),
    batch("d-96-page-64", "twelve times eight; a block of half the host's KV tile", RAGGED, BF16, d=96, block_size=64),
    batch("d-112", "fourteen times eight", RAGGED, F32, d=112),
    batch("d-120", "fifteen times eight: one lane of 16 idle", RAGGED, BF16, d=120),
    batch("d-128-heads-32-8", "a typical large model", ((1, 70), (12, 30)), BF16, d=128, heads=(32, 8)),
    batch("d-192", "more than four vectors of 32, not a power of two", ((1, 70), (9, 9)), F32, d=192, heads=(4, 2)),
    batch("d-256", "the largest head dimension", ((1, 70), (9, 40)), F32, d=256, heads=(4, 1)),
    batch("heads-5-1", "a group of five: one token's rows are in two tiles of rows", RAGGED, F32, heads=(5, 1)),
    batch(
        "heads-6-1", "a group of six: two tiles of four heads on CUDA, the last one not full", RAGGED, F16, heads=(6, 1)
    ),
    batch("heads-64-8", "many heads", ((1, 40), (4, 20)), BF16, heads=(64, 8)),
    batch("heads-32-32", "no grouping: one row per token and head", ((1, 40), (4, 20)), F32, heads=(32, 32)),
    batch(
        "merged", "the cache's last dimensions merged: [2, blocks, block_size, kv_heads * d]", RAGGED, F32, merged=True
    ),
    batch("long-prefill", "720 rows, 180 keys: several tiles of both, crossed by the diagonal", ((180, 180),), F32),
    batch("long-decode", "three ranges of keys, whose results are merged", LONG, F32, block_size=32),
    batch("long-decode-bf16", "as above, rounded once at the end", LONGER, BF16, block_size=32),
    batch("window-1", "a token sees only itself: the result is its own value", RAGGED, F32, sliding_window=1),
    batch("window-7", "shorter than a tile of rows and than a block", RAGGED, F16, sliding_window=7),
    batch(
        "many-chunks",
        "more splits on CUDA than a warp has lanes; three splits with two tokens",
        ((1, 70_000), (2, 5200)),
        BF16,
        cuda_size=True,
        heads=(4, 1),
    ),
    batch(
        "few-chunks",
        "so many heads that splits on CUDA are longer than usual",
        ((1, 12_000),),
        F16,
        cuda_size=True,
        heads=(64, 64),
        d=8,
    ),
    batch("window-50", "shorter, equal and longer than a context; skips whole blocks", RAGGED, F32, sliding_window=50),
    batch("window-long", "longer than every context, and more than 32 bits hold", RAGGED, F32, sliding_window=2**40),
    batch("cap-0.5", "a cap far below the logits: tanh is 1 almost everywhere", RAGGED, F32, soft_cap=0.5, spread=4.0),
    batch("cap-50", "a cap far above the logits: tanh(x) is x", RAGGED, BF16, soft_cap=50.0),
    batch("cap-window", "the cap comes before the mask", RAGGED, F32, soft_cap=2.0, sliding_window=20),
    batch(
        "large-logits",
        "logits of about 100: e^x overflows unless the maximum is subtracted; the logits' own rounding shows",
        RAGGED,
        F32,
        spread=30.0,
        roundings=400,
    ),
    batch("scale-0", "scale 0.0 is a value: the result is the mean of what a token sees", RAGGED, F32, scale=0.0),
    batch("scale-negative", "the largest logit belongs to the smallest product", RAGGED, F32, scale=-0.2),
    batch("alibi", "a bias by distance: zero, steep, flat and negative slopes", RAGGED, F32, alibi=True),
    batch("alibi-long-decode", "distances across ranges of keys", LONGER, BF16, alibi=True),
    batch(
        "alibi-cap-window", "the cap comes before the bias", RAGGED, F32, alibi=True, soft_cap=1.0, sliding_window=20
    ),
    batch("sinks", "one more logit: huge, typical and absent ones", RAGGED, F32, sinks=True),
    batch("sinks-long-decode", "ranges are merged, and the sink counts once", LONGER, F16, sinks=True),
    batch("sinks-cap-scale", "the sink has neither scale nor cap", RAGGED, F32, sinks=True, soft_cap=0.5, scale=3.0),
    batch("f8-bf16", "a float8 cache without scales", RAGGED, BF16, cache_dtype=F8),
    batch("f8-f16-scaled", "as above, with a scale for each head", RAGGED, F16, cache_dtype=F8, scaled=True),
    batch(
        "f8-f32-merged", "rows of 48 bytes in the cache", RAGGED, F32, cache_dtype=F8, scaled=True, d=24, merged=True
    ),
    batch(
        "f8-prefill",
        "whole tiles of keys of a float8 cache, and those that the diagonal crosses",
        ((180, 180), (70, 300)),
        BF16,
        cache_dtype=F8,
        scaled=True,
        d=128,
    ),
    batch(
        "f8-prefill-cap-window",
        "as above; pages of eight, from which CUDA copies eight keys at a time",
        ((180, 180), (140, 500)),
        F16,
        cache_dtype=F8,
        scaled=True,
        block_size=8,
        soft_cap=5.0,
        sliding_window=50,
    ),
    batch(
        "f8-prefill-d-112",
        "on CUDA rows end within a tile; pages of four, which TMA does not copy",
        ((180, 180), (70, 300)),
        F16,
        cache_dtype=F8,
        scaled=True,
        d=112,
        block_size=4,
    ),
    batch(
        "f8-prefill-d-256",
        "the longest heads; tiles of keys of which rows see some",
        ((180, 180), (70, 300)),
        BF16,
        cache_dtype=F8,
        scaled=True,
        d=256,
        heads=(4, 1),
        sliding_window=50,
    ),
    batch("f8-prefill-page-1", "as d-112, for heads of 64", ((180, 180),), BF16, cache_dtype=F8, block_size=1),
    batch("f8-long-decode", "scales, over several ranges of keys", LONGER, BF16, cache_dtype=F8, scaled=True, d=128),
    batch("all-options", "cap, bias, window, sinks, float8, padding: in the right order", RAGGED, F32, **ALL_OPTIONS),
    batch("all-options-bf16", "as above; d 256, a group of five", RAGGED, BF16, d=256, heads=(5, 1), **ALL_OPTIONS),
    batch("no-new-tokens", "sequences without new tokens: no rows", ((0, 0), (0, 20)), F32),
    batch("padding-only", "num_seqs 0: every row is zero", (), F32, padding=(4, 3)),
    batch("empty-batch", "no sequences, no rows", (), BF16),
    *TILES,
]
