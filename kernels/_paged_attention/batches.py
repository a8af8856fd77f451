"""Ragged batches for paged_attention: makes its arguments from lengths and computes the result by torch's own ops."""

import math
from collections.abc import Iterable
from itertools import pairwise

import torch

# On tensor cores the softmax weights of 16-bit values have 16 bits too, as in torch's flash attention, so each weight
# is rounded. Where values cancel, this shows in their sum: with exact products of weights rounded in this way, over
# twenty seeds of each of the tests' batches, the error reached 2^-8 (bfloat16) or 2^-11 (float16) of the row's largest
# result. Twice that is allowed, counted in float32 roundings of 2^-23. The mean shows that nothing else is lost: the
# root mean square error may be at most 1.5 times that of torch's own attention.
ROUNDED_WEIGHTS = {torch.bfloat16: 1 << 16, torch.float16: 1 << 13}


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
    alibi: bool = False,
    sinks: bool = False,
    cache_dtype: torch.dtype | None = None,
    scaled: bool = False,
) -> dict:
    """A ragged batch whose sequences the generator shuffles, so that each seed has them in another order.

    All that no token may see is NaN or out of range: slots of the cache, entries of the block tables before the window
    and after the context, and everything in padding rows and sequences. The values at the first and the last position
    in sight are large, and each head has another offset, so that a range that is off by one, or a wrong head, shows.

    Args:
        lengths: (new tokens, context) of each sequence.
        heads: query and kv heads.
        merged: merge the cache's last two dimensions.
        padding: rows and sequences after the last one in use.
        spread: factor of the query, which at the default scale is the logits' standard deviation.
        alibi: the usual slopes, falling to 2^-8, except that the first one is 0 and the last one negative.
        sinks: one for each head; the first one takes nearly all weight, the last one is -inf and takes none.
        cache_dtype: the cache's dtype; None: `dtype`.
        scaled: random kv_scales of 0.5 to 1.5.
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
        if new:
            used, before = slice(first // block_size, counts[seq]), sum(counts[:seq])
            tables[seq, used] = ids[before : before + counts[seq]][used].int()
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
        "kv_cache": (cache.flatten(3) if merged else cache).to(cache_dtype or dtype),
        "context_lens": integers(*(context for _, context in lengths), *[-5] * more_seqs),
        "block_tables": tables,
        "query_start_loc": integers(*starts, *[-1] * more_seqs),
        "num_seqs": integers(len(lengths)),
        "scale": 1 / math.sqrt(d) if scale is None else scale,
        "sliding_window": sliding_window,
        "soft_cap": soft_cap,
        "alibi_slopes": slopes(heads) if alibi else None,
        "sinks": sink_logits(heads, generator) if sinks else None,
        "kv_scales": torch.rand(2, kv_heads, generator=generator) + 0.5 if scaled else None,
    }


def repeated(a: dict, copies: int) -> dict:
    """A batch with its sequences and their rows several times, over the same cache; padding stays at the end."""
    count = int(a["num_seqs"])
    starts, rows = a["query_start_loc"][: count + 1], int(a["query_start_loc"][count])
    offsets = rows * torch.arange(copies, dtype=torch.int32)[:, None]

    def of(tensor: torch.Tensor, used: int) -> torch.Tensor:
        return torch.cat([*[tensor[:used]] * copies, tensor[used:]])

    return a | {
        "query": of(a["query"], rows),
        "context_lens": of(a["context_lens"], count),
        "block_tables": of(a["block_tables"], count),
        "query_start_loc": torch.cat(
            [(offsets + starts[:-1]).flatten(), integers(rows * copies), a["query_start_loc"][count + 1 :]]
        ),
        "num_seqs": integers(count * copies),
    }


def slopes(heads: int) -> torch.Tensor:
    result = 2 ** (-8 * torch.arange(1, heads + 1) / heads)
    result[0], result[-1] = 0, -result[-1]
    return result


def sink_logits(heads: int, generator: torch.Generator) -> torch.Tensor:
    result = 2 * torch.randn(heads, generator=generator)
    result[0], result[-1] = 8, -torch.inf
    return result


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def sequences(a: dict) -> Iterable[tuple[slice, int, torch.Tensor, torch.Tensor]]:
    """Rows of the query, first position in sight, gathered keys and values, for each sequence with new tokens."""
    query, window = a["query"], a["sliding_window"]
    cache = a["kv_cache"].to(query.dtype)  # exact, also for float8
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
    """torch's scaled_dot_product_attention on the gathered keys and values, a sequence at a time. Of the options it
    supports only scale and window."""
    query, window = a["query"], a["sliding_window"]
    out = torch.zeros_like(query)
    for rows, _, keys, values in sequences(a):
        new, context, group = rows.stop - rows.start, len(keys), query.shape[1] // keys.shape[1]
        keys, values = (t.transpose(0, 1)[None].contiguous() for t in (keys, values))
        if new == 1:
            # The token sees all keys, so the heads of a group are the rows of one product.
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
