"""Inputs of paged_attention, for its test and its benchmark; each with its reason."""

import math
from collections.abc import Iterable
from itertools import pairwise

import torch

from pyxla.testing import BadInput, Case

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16

# (new tokens, context) of each sequence.
RAGGED = ((1, 97), (40, 40), (1, 16), (0, 33), (17, 50), (1, 1), (5, 130), (0, 0))


def arguments(
    generator: torch.Generator,
    lengths: Iterable[tuple[int, int]],
    dtype: torch.dtype,
    *,
    heads: tuple[int, int] = (8, 2),
    d: int = 64,
    block_size: int = 16,
    merged: bool = False,
    padding: tuple[int, int] = (0, 0),
    spread: float = 1.0,
    scale: float | None = None,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> dict:
    """A ragged batch whose sequences come in an order of the generator's, so that every seed has other lengths.

    All that no token may see is NaN or out of range: slots of the cache, entries of the block tables before the window
    and behind the context, and everything in padding rows and sequences. The last key and the first one in sight get a
    large value, and each head its own offset: a range that is off by one, or a wrong head, shows.

    Args:
        lengths: (new tokens, context) of each sequence.
        heads: query and kv heads.
        merged: the cache's last two dimensions in one.
        padding: rows and sequences behind the last one in use.
        spread: factor of the query; the logits' standard deviation.
    """
    lengths = list(lengths)
    lengths = [lengths[i] for i in torch.randperm(len(lengths), generator=generator)]
    (heads, kv_heads), (more_rows, more_seqs) = heads, padding
    counts = [-(-context // block_size) for _, context in lengths]
    blocks, max_blocks = sum(counts) + 2, max([0, *counts]) + 1
    ids = torch.randperm(blocks, generator=generator)

    tokens = sum(new for new, _ in lengths)
    query = torch.full((tokens + more_rows, heads, d), torch.nan)
    query[:tokens] = spread * torch.randn(tokens, heads, d, generator=generator)
    cache = torch.full((2, blocks, block_size, kv_heads, d), torch.nan)
    tables = torch.full((len(lengths) + more_seqs, max_blocks), -(2**31), dtype=torch.int32)
    for seq, (new, context) in enumerate(lengths):
        first = 0 if sliding_window is None else max(0, context - new + 1 - sliding_window)
        used = range(first // block_size, -(-context // block_size)) if new else range(0)
        for index in used:
            tables[seq, index] = ids[sum(counts[:seq]) + index]
        if new:
            seen = torch.arange(first, context)
            slots = tables[seq, seen // block_size].long(), seen % block_size
            cache[:, *slots] = torch.randn(2, len(seen), kv_heads, d, generator=generator)
            cache[1, *slots] += torch.arange(kv_heads)[:, None]
            for end in (0, -1):
                cache[1, slots[0][end], slots[1][end]] += 8

    starts = [0]
    for new, _ in lengths:
        starts.append(starts[-1] + new)
    return {
        "query": query.to(dtype),
        "kv_cache": (cache.flatten(3) if merged else cache).to(dtype),
        "context_lens": integers(*(context for _, context in lengths), *[-5] * more_seqs),
        "block_tables": tables,
        "query_start_loc": integers(*starts, *[-1] * more_seqs),
        "num_seqs": integers(len(lengths)),
        "scale": 1 / math.sqrt(d) if scale is None else scale,
        "sliding_window": sliding_window,
        "soft_cap": soft_cap,
    }


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def sequences(a: dict) -> Iterable[tuple[slice, int, torch.Tensor, torch.Tensor]]:
    """Rows of the query, first position in sight, keys and values of each sequence, gathered; a fixed batch's loops."""
    query, cache, window = a["query"], a["kv_cache"], a["sliding_window"]
    cache = cache.unflatten(3, (-1, query.shape[2])) if cache.dim() == 4 else cache
    starts, lengths = a["query_start_loc"].tolist(), a["context_lens"].tolist()
    for seq, (start, end) in enumerate(pairwise(starts[: int(a["num_seqs"]) + 1])):
        if end > start:
            first = 0 if window is None else max(0, lengths[seq] - (end - start) + 1 - window)
            positions = torch.arange(first, lengths[seq])
            blocks = a["block_tables"][seq, positions // cache.shape[2]].long()
            keys, values = cache[:, blocks, positions % cache.shape[2]]
            yield slice(start, end), first, keys, values


def torch_attention(**a) -> torch.Tensor:
    """torch's scaled_dot_product_attention on the gathered keys and values, a sequence at a time; no soft cap."""
    query, window = a["query"], a["sliding_window"]
    out = torch.zeros_like(query)
    for rows, _, keys, values in sequences(a):
        new, context, group = rows.stop - rows.start, len(keys), query.shape[1] // keys.shape[1]
        keys, values = (t.transpose(0, 1)[None].contiguous() for t in (keys, values))
        if new == 1:
            # All keys are seen: the heads of a group are the rows of one product.
            grouped = query[rows].unflatten(1, (-1, group))
            result = torch.nn.functional.scaled_dot_product_attention(grouped, keys, values, scale=a["scale"])
            out[rows] = result.flatten(1, 2)
            continue
        distance = torch.arange(context - new, context)[:, None] - torch.arange(context)
        seen = (distance >= 0) & (distance < (window or context))
        causal = new == context and (window is None or window >= context)
        out[rows] = torch.nn.functional.scaled_dot_product_attention(
            query[rows].transpose(0, 1)[None],
            keys.repeat_interleave(group, dim=1),
            values.repeat_interleave(group, dim=1),
            attn_mask=None if causal else torch.zeros(seen.shape, dtype=query.dtype).masked_fill(~seen, -torch.inf),
            is_causal=causal,
            scale=a["scale"],
        )[0].transpose(0, 1)
    return out


def case(name: str, why: str, lengths: Iterable[tuple[int, int]], dtype: torch.dtype, **options) -> Case:
    """A case whose peer is torch's attention where that has all that the case needs."""
    roundings = options.pop("roundings", 16)
    peer = None if "soft_cap" in options else torch_attention
    return Case(name, why, lambda g: arguments(g, lengths, dtype, **options), peer=peer, roundings=roundings)


def shared_prefix(generator: torch.Generator) -> dict:
    """Three sequences whose first two blocks are the same ones."""
    a = arguments(generator, [(3, 40), (1, 48), (20, 41)], F32, block_size=8)
    a["block_tables"][:, :2] = a["block_tables"][0, :2]
    return a


CASES = [
    *(
        case(
            f"ragged-{name}",
            "prefills, decodes and padding in one batch: the op's main job",
            RAGGED,
            dtype,
            padding=(3, 2),
        )
        for name, dtype in {"f32": F32, "bf16": BF16, "f16": F16}.items()
    ),
    case("page-1", "a block per token", RAGGED, BF16, block_size=1),
    case("page-8", "several blocks per vector of keys", RAGGED, F16, block_size=8),
    case("page-32", "context 33: one slot of the second block", ((1, 33), (33, 33), (2, 32)), F32, block_size=32),
    case("page-128", "a block as long as the host's tile of keys", ((1, 200), (9, 129)), BF16, block_size=128),
    case("page-256", "the largest block; contexts around its end", ((1, 256), (3, 257), (2, 255)), F16, block_size=256),
    case("d-8", "one vector of a row, one lane of a warp", RAGGED, F32, d=8),
    case("d-72", "nine eighths: an odd number of vectors, idle lanes", RAGGED, BF16, d=72),
    case("d-80", "ten eighths", RAGGED, F16, d=80),
    case("d-128-heads-32-8", "the usual large model", ((1, 70), (12, 30)), BF16, d=128, heads=(32, 8)),
    case("d-192", "more than four vectors of 32, not a power of two", ((1, 70), (9, 9)), F32, d=192, heads=(4, 2)),
    case("d-256", "the largest head", ((1, 70), (9, 40)), F32, d=256, heads=(4, 1)),
    case("heads-5-1", "a group of five: rows of one token in two blocks of rows", RAGGED, F32, heads=(5, 1)),
    case(
        "heads-6-1", "a group of six: two blocks of four heads on CUDA, the last one short", RAGGED, F16, heads=(6, 1)
    ),
    case("heads-64-8", "many heads", ((1, 40), (4, 20)), BF16, heads=(64, 8)),
    case("heads-32-32", "no grouping: one row per token and head", ((1, 40), (4, 20)), F32, heads=(32, 32)),
    case(
        "merged", "the cache's last dimensions merged: [2, blocks, block_size, kv_heads * d]", RAGGED, F32, merged=True
    ),
    case("long-prefill", "720 rows, 180 keys: several tiles of both, the diagonal across them", ((180, 180),), F32),
    case("long-decode", "three ranges of keys, whose shares are merged", ((1, 2100), (3, 1025)), F32, block_size=32),
    case("long-decode-bf16", "as above, rounded once at the end", ((1, 2100), (3, 1025)), BF16, block_size=32),
    case("window-1", "a token sees itself alone: the result is its own value", RAGGED, F32, sliding_window=1),
    case("window-7", "shorter than a block of rows, and than a page", RAGGED, F16, sliding_window=7),
    case("window-50", "shorter, equal and longer than a context; skips whole blocks", RAGGED, F32, sliding_window=50),
    case("window-long", "longer than every context, and than 32 bits", RAGGED, F32, sliding_window=2**40),
    case("cap-0.5", "a cap far below the logits: tanh is 1 almost everywhere", RAGGED, F32, soft_cap=0.5, spread=4.0),
    case("cap-50", "a cap far above them: tanh(x) is x", RAGGED, BF16, soft_cap=50.0),
    case("cap-window", "the cap comes before the mask", RAGGED, F32, soft_cap=2.0, sliding_window=20),
    case(
        "large-logits",
        "logits of a hundred: without the maximum taken away e^x overflows; their own rounding shows",
        RAGGED,
        F32,
        spread=30.0,
        roundings=400,
    ),
    case("scale-0", "scale 0.0 is a value: the mean of what a token sees", RAGGED, F32, scale=0.0),
    case("scale-negative", "the largest logit belongs to the smallest product", RAGGED, F32, scale=-0.2),
    Case("shared-prefix", "block ids repeat across sequences", shared_prefix, peer=torch_attention),
    case("no-new-tokens", "sequences alone, no row", ((0, 0), (0, 20)), F32),
    case("padding-only", "num_seqs 0: every row is zero", (), F32, padding=(4, 3)),
    case("empty-batch", "no sequence, no row", (), BF16),
]


def changed(dtype: torch.dtype = F32, **changes) -> dict:
    """Good arguments, of lengths (2, 20), (1, 30) and (3, 3) and 64 blocks of 8, with some of them replaced."""
    return {
        "query": torch.ones(6, 8, 64, dtype=dtype),
        "kv_cache": torch.ones(2, 64, 8, 2, 64, dtype=dtype),
        "context_lens": integers(20, 30, 3),
        "block_tables": torch.arange(18, dtype=torch.int32).reshape(3, 6),
        "query_start_loc": integers(0, 2, 3, 6),
        "num_seqs": integers(3),
        "scale": 0.125,
        "sliding_window": None,
        "soft_cap": None,
    } | changes


def table_with(seq: int, index: int, block: int) -> torch.Tensor:
    table = changed()["block_tables"]
    table[seq, index] = block
    return table


def bad(expected: str, got: str, argument: str | None = None, at_run_time: bool = False, **changes) -> BadInput:
    """Good arguments with some changed; the message names `argument`, else the first one that changed."""
    argument = argument or next(iter(changes))
    message = f"paged_attention: {argument}: expected {expected}, got {got}"
    return BadInput(f"{argument}-{got}".replace(" ", "-"), lambda g: changed(**changes), message, at_run_time)


def bad_value(expected: str, got: str, **changes) -> BadInput:
    return bad(expected, got, at_run_time=True, **changes)


def size(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


BAD_INPUTS = [
    bad("dtype float32 or bfloat16 or float16", "int32", query=size(6, 8, 64).int()),
    bad("rank 3", "shape (6, 512)", query=size(6, 512)),
    bad("a last dimension of 8, 16, ... 256", "12", query=size(6, 8, 12)),
    bad("a last dimension of 8, 16, ... 256", "264", query=size(6, 8, 264)),
    bad("a last dimension of 8, 16, ... 256", "0", query=size(6, 8, 0)),
    bad("dtype float32", "float16", kv_cache=size(2, 64, 8, 2, 64).half()),
    bad("rank 4 or 5", "shape (2, 64, 1024)", kv_cache=size(2, 64, 1024)),
    bad("a first dimension of 2, keys and values", "1", kv_cache=size(1, 64, 8, 2, 64)),
    bad("a block size in [1, 256]", "257", kv_cache=size(2, 4, 257, 2, 64)),
    bad("a block size in [1, 256]", "0", kv_cache=size(2, 4, 0, 2, 64)),
    bad("heads of query's size 64", "shape (2, 64, 8, 2, 32)", kv_cache=size(2, 64, 8, 2, 32)),
    bad("heads of query's size 64", "shape (2, 64, 8, 100)", kv_cache=size(2, 64, 8, 100)),
    bad("a positive multiple of 3 kv heads", "8", "query", kv_cache=size(2, 64, 8, 3, 64)),
    bad("a positive multiple of 0 kv heads", "8", "query", kv_cache=size(2, 64, 8, 0, 64)),
    bad("a positive multiple of 2 kv heads", "0", "query", query=size(6, 0, 64)),
    bad("dtype int32", "int64", context_lens=torch.tensor([20, 30, 3])),
    bad("rank 1", "shape (1, 3)", context_lens=integers(20, 30, 3)[None]),
    bad("dtype int32", "float32", block_tables=size(3, 6)),
    bad("rank 2", "shape (18,)", block_tables=size(18).int()),
    bad("shape (3, 9)", "(2, 9)", block_tables=size(2, 9).int()),
    bad("dtype int32", "int64", query_start_loc=torch.tensor([0, 2, 3, 6])),
    bad("shape (4,)", "(3,)", query_start_loc=integers(0, 2, 6)),
    bad("dtype int32", "int64", num_seqs=torch.tensor([3])),
    bad("shape (1,)", "()", num_seqs=integers(3)[0]),
    bad("a finite number", "nan", scale=math.nan),
    bad("a finite number", "inf", scale=math.inf),
    bad("a count of 1 or more", "0", sliding_window=0),
    bad("a count of 1 or more", "-3", sliding_window=-3),
    bad("a finite number above 0", "0", soft_cap=0.0),
    bad("a finite number above 0", "nan", soft_cap=math.nan),
    # From here on only the data shows it.
    bad_value("a count in [0, 3]", "4", num_seqs=integers(4)),
    bad_value("a count in [0, 3]", "-1", num_seqs=integers(-1)),
    bad_value("0", "1 at index 0", query_start_loc=integers(1, 2, 3, 6)),
    bad_value("a row in [3, 6]", "2 at index 3", query_start_loc=integers(0, 2, 3, 2)),
    bad_value("a row in [3, 6]", "7 at index 3", query_start_loc=integers(0, 2, 3, 7)),
    bad_value("a length in [1, 48]", "-1 at sequence 1", context_lens=integers(20, -1, 3)),
    bad_value("a length in [3, 48]", "2 at sequence 2", context_lens=integers(20, 30, 2)),
    bad_value("a length in [2, 48]", "49 at sequence 0", context_lens=integers(49, 30, 3)),
    bad_value("a block id in [0, 64)", "-3 at sequence 1, index 3", block_tables=table_with(1, 3, -3)),
    bad_value("a block id in [0, 64)", "64 at sequence 0, index 0", block_tables=table_with(0, 0, 64)),
    bad_value(
        "a block id in [0, 64)", "99 at sequence 1, index 2", block_tables=table_with(1, 2, 99), sliding_window=10
    ),
]
