"""What is timed of paged_attention: batches as in serving a large model."""

from typing import Any

import torch
from pyxla_kernels._paged_attention.benches import bench, ragged

from pyxla.benchmark import Bench

BF16, F16, F32, F8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
PREFILL = ("fa2", "fa3")

_TYPICAL = [
    bench("bf16-decode-64x4096", "a typical batch", [(1, 4096)] * 64, "cuda", BF16, "decode"),
    bench("bf16-decode-256x1024", "many short contexts", [(1, 1024)] * 256, "cuda", BF16, "decode"),
    bench("bf16-decode-8x8192", "64 kv heads in the batch: fewer than SMs", [(1, 8192)] * 8, "cuda", BF16, "decode"),
    bench("bf16-decode-1x32768", "one user: a single long context", [(1, 32768)], "cuda", BF16, "decode"),
    bench("bf16-decode-ragged", "64 contexts of 1 to 16384", ragged(64, 16384), "cuda", BF16, "decode"),
    bench("bf16-prefill-8x2048", "whole prompts", [(2048, 2048)] * 8, "cuda", BF16, *PREFILL),
    bench("bf16-prefill-1x8192", "one long prompt", [(8192, 8192)], "cuda", BF16, *PREFILL),
    bench("bf16-prefill-16x512-on-4096", "chunks of prompts", [(512, 4096)] * 16, "cuda", BF16, *PREFILL),
    bench("f32-decode-16x1024", "a typical batch, smaller", [(1, 1024)] * 16, "cpu", F32),
    bench("bf16-decode-16x1024", "as above, 16 bits", [(1, 1024)] * 16, "cpu", BF16),
    bench("bf16-decode-1x8192", "one user: a single long context", [(1, 8192)], "cpu", BF16),
    bench("bf16-decode-ragged", "16 contexts of 1 to 4096", ragged(16, 4096), "cpu", BF16),
    bench("bf16-prefill-2x512", "whole prompts", [(512, 512)] * 2, "cpu", BF16),
    bench("bf16-prefill-256-on-2048", "a chunk of a prompt", [(256, 2048)], "cpu", BF16),
]


def _between(count: int, shortest: int, longest: int) -> list[int]:
    """Lengths spread over a range, in no order."""
    return [shortest + (longest - shortest) * (number * 37 % count) // count for number in range(count)]


# The kinds of work beside the typical ones, at sizes for which no kernel was tuned. torch, a sequence at a time, would
# take seconds.
def _decode(name: str, why: str, contexts: list[int], dtype: torch.dtype = BF16, **sizes: Any) -> Bench:
    lengths = [(1, context) for context in contexts]
    return bench(name, why, lengths, "cuda", dtype, "decode", beside_torch=False, **sizes)


def _prefill(name: str, why: str, lengths: list[tuple[int, int]], **sizes: Any) -> Bench:
    # FlashInfer's fa3 takes no cache of another dtype than the query's.
    kinds = ("fa2",) if "cache_dtype" in sizes else PREFILL
    return bench(name, why, lengths, "cuda", BF16, *kinds, beside_torch=False, **sizes)


def _prompts(*lengths: int) -> list[tuple[int, int]]:
    return [(length, length) for length in lengths]


_KINDS = [
    _decode("bf16-decode-128x2k-to-5k", "large, ragged", _between(128, 2048, 5120)),
    _decode("bf16-decode-96x3000-64-heads", "large, groups of 8", [3000] * 96, heads=(64, 8)),
    _decode("bf16-decode-64x3000-mha", "large, without groups", [3000] * 64, heads=(16, 16)),
    _decode("f16-decode-96x3000", "large, float16", [3000] * 96, F16),
    _decode("bf16-decode-1024x100", "very many short contexts", [100] * 1024),
    _decode("bf16-decode-8x100", "few short contexts", [100] * 8),
    _decode("bf16-decode-1x1024", "one user: latency", [1024]),
    _decode("bf16-decode-1x4096", "one user: latency", [4096]),
    _decode("bf16-decode-4x50000", "few long contexts", [50000] * 4),
    _decode("bf16-decode-12x20000", "few long contexts", [20000] * 12),
    _decode("bf16-decode-6x16k-to-64k", "few long contexts, ragged", _between(6, 16384, 65536)),
    _decode("bf16-decode-32x1k-to-9k", "some long contexts among shorter ones", _between(32, 1024, 9216)),
    _decode("bf16-decode-96x3000-groups-of-7", "7 query heads to a kv head", [3000] * 96, heads=(28, 4)),
    _decode("bf16-decode-96x3000-pages-of-32", "pages of 32", [3000] * 96, block_size=32),
    _decode("bf16-decode-128x3000-d64", "head size 64, pages of 64", [3000] * 128, d=64, block_size=64),
    _prefill("bf16-2-new-on-16x8000", "2 tokens of a draft", [(2, 8000)] * 16),
    _prefill("bf16-4-new-on-1x4096", "4 tokens of one user's draft", [(4, 4096)]),
    _prefill("bf16-3-new-on-32x1k-to-9k", "3 tokens, ragged", [(3, n) for n in _between(32, 1024, 9216)]),
    _prefill("bf16-4-new-on-8x16000", "4 tokens of a draft", [(4, 16000)] * 8),
    _prefill("bf16-8-new-on-1x4096", "8 tokens of one user's draft", [(8, 4096)]),
    _prefill("bf16-8-new-on-4x30000", "8 tokens of a draft, few long contexts", [(8, 30000)] * 4),
    _prefill("bf16-8-new-on-32x4096", "8 tokens of a draft, many contexts", [(8, 4096)] * 32),
    _prefill("bf16-8-new-on-16x8000", "8 tokens of a draft", [(8, 8000)] * 16),
    _prefill("bf16-prefill-2x5000-64-heads", "whole prompts, groups of 8", _prompts(5000, 5000), heads=(64, 8)),
    _prefill("bf16-64-new-on-1x30000", "the end of a long prompt", [(64, 30000)]),
    _prefill("bf16-prefill-1x16384", "one very long prompt", _prompts(16384)),
    _prefill("bf16-prefill-ragged", "12 prompts of 300 to 4000 tokens", _prompts(*_between(12, 300, 4000))),
    _prefill("bf16-prefill-4x3000-d64", "head size 64", _prompts(*[3000] * 4), d=64),
    _prefill("bf16-prefill-1x12000-d64", "head size 64, one long prompt", _prompts(12000), d=64),
    _decode("bf16-decode-96x3000-cap-50", "a soft cap, as Gemma 2 has", [3000] * 96, soft_cap=50.0),
    _prefill("bf16-prefill-4x3000-cap-50", "a soft cap, as Gemma 2 has", _prompts(*[3000] * 4), soft_cap=50.0),
    _prefill("bf16-f8-prefill-4x3000", "a float8 cache", _prompts(*[3000] * 4), cache_dtype=F8),
    _prefill("bf16-f8-prefill-1x8192", "a float8 cache, one long prompt", _prompts(8192), cache_dtype=F8),
    _prefill("bf16-f8-prefill-4x3000-d64", "a float8 cache, head size 64", _prompts(*[3000] * 4), d=64, cache_dtype=F8),
    _prefill(
        "bf16-f8-prefill-4x3000-d256", "a float8 cache, the longest heads", _prompts(*[3000] * 4), d=256, cache_dtype=F8
    ),
    _prefill("bf16-mixed", "prefills and decodes in one call", _prompts(*[1500] * 4) + [(1, 2500)] * 96),
]

BENCHES: list[Bench] = [*_TYPICAL, *_KINDS]
