"""Reference, checks and fake function shared by paged_attention and the other ops that compute it."""

from dataclasses import dataclass

import torch

from pyxla import Check, accumulation_dtype

# Logits that the reference computes at a time: all those of a long prefill would take much memory.
LOGITS = 1 << 22


@dataclass(frozen=True)
class Arguments:
    """The arguments of paged_attention; an op that lacks an optional one leaves it None."""

    query: torch.Tensor
    kv_cache: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    query_start_loc: torch.Tensor
    num_seqs: torch.Tensor
    scale: float
    sliding_window: int | None = None
    soft_cap: float | None = None
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    kv_scales: torch.Tensor | None = None


def attend(check: Check, a: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference: returns the result and the logarithm of each softmax's sum."""
    if a.query.device.type == "cpu":
        check_values(check, a)
    wide = accumulation_dtype(a.query.dtype)
    tokens, heads, head_dim = a.query.shape
    cache = a.kv_cache.unflatten(3, (-1, head_dim)) if a.kv_cache.dim() == 4 else a.kv_cache
    # torch cannot index float8 on the CPU, but it can index the bytes.
    stored = cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
    block_size = cache.shape[2]
    starts = a.query_start_loc.tolist()
    out = torch.zeros_like(a.query, memory_format=torch.contiguous_format)
    lse = torch.full((tokens, heads), -torch.inf, dtype=wide, device=a.query.device)
    for seq, length in enumerate(a.context_lens.tolist()[: int(a.num_seqs)]):
        start, end = starts[seq], starts[seq + 1]
        if start == end:
            continue
        window = length if a.sliding_window is None else a.sliding_window
        # A row's position is the row plus `shift`. The sequence's new tokens see the keys and values from `first` on.
        shift = length - end
        first = max(0, start + shift + 1 - window)
        seen = torch.arange(first, length, device=a.query.device)
        blocks = a.block_tables[seq, seen // block_size].long()
        gathered = stored[:, blocks, seen % block_size].view(cache.dtype).to(wide)
        if a.kv_scales is not None:
            gathered = gathered * a.kv_scales.to(wide)[:, None, :, None]
        # Even where it is masked, an infinity or a NaN is multiplied by zero: then each row alone, cut to what it sees.
        step = max(1, LOGITS // max(1, heads * len(seen))) if bool(gathered.isfinite().all()) else 1
        for begin in range(start, end, step):
            rows = slice(begin, min(begin + step, end))
            cut = slice(max(0, begin + shift + 1 - window - first), rows.stop + shift - first)
            own = torch.arange(rows.start + shift, rows.stop + shift, device=a.query.device)
            out[rows], lse[rows] = _attend(
                a, a.query[rows].to(wide), gathered[:, cut], seen[cut] - own[:, None], window
            )
    return out, lse


def _attend(
    a: Arguments, query: torch.Tensor, cache: torch.Tensor, distance: torch.Tensor, window: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """For some rows of a sequence, whose keys and values are at these distances, [rows, keys]."""
    keys, values = cache
    grouped = query.unflatten(1, (keys.shape[1], -1))  # g: the query heads of a kv head
    logits = torch.einsum("rhgd,khd->rhgk", grouped, keys).flatten(1, 2) * a.scale
    if a.soft_cap is not None:
        logits = a.soft_cap * torch.tanh(logits / a.soft_cap)
    if a.alibi_slopes is not None:
        logits = logits + a.alibi_slopes.to(logits.dtype)[:, None] * distance[:, None]
    logits = logits.masked_fill(((distance > 0) | (distance <= -window))[:, None], -torch.inf)
    if a.sinks is not None:
        sinks = a.sinks.to(logits.dtype)[:, None].expand(len(query), -1, 1)
        logits = torch.cat([logits, sinks], dim=2)
    weights = logits.softmax(dim=-1)[:, :, : len(keys)].unflatten(1, (keys.shape[1], -1))
    return torch.einsum("rhgk,khd->rhgd", weights, values).flatten(1, 2), logits.logsumexp(dim=-1)


def infer_results(check: Check, a: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """The fake function: checks the arguments for the op that `check` names and returns empty results."""
    check.dtype("query", a.query, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.rank("query", a.query, 3)
    tokens, heads, head_dim = a.query.shape
    supported = head_dim % 8 == 0 and 8 <= head_dim <= 256
    check.that(supported, "query", "a last dimension of 8, 16, ... 256", head_dim)

    check.dtype("kv_cache", a.kv_cache, (a.query.dtype, torch.float8_e4m3fn))
    shape = tuple(a.kv_cache.shape)
    check.that(len(shape) in (4, 5), "kv_cache", "rank 4 or 5", f"shape {shape}")
    check.that(shape[0] == 2, "kv_cache", "a first dimension of 2, keys and values", shape[0])
    check.that(1 <= shape[2] <= 256, "kv_cache", "a block size in [1, 256]", shape[2])
    fits = shape[3] % head_dim == 0 if len(shape) == 4 else shape[4] == head_dim
    check.that(fits, "kv_cache", f"heads of query's size {head_dim}", f"shape {shape}")
    kv_heads = shape[3] // head_dim if len(shape) == 4 else shape[3]
    grouped = kv_heads >= 1 and heads >= 1 and heads % kv_heads == 0
    check.that(grouped, "query", f"a positive multiple of {kv_heads} kv heads", heads)

    check.dtype("context_lens", a.context_lens, (torch.int32,))
    check.rank("context_lens", a.context_lens, 1)
    seqs = a.context_lens.shape[0]
    check.dtype("block_tables", a.block_tables, (torch.int32,))
    check.rank("block_tables", a.block_tables, 2)
    check.shape("block_tables", a.block_tables, (seqs, a.block_tables.shape[1]))
    check.dtype("query_start_loc", a.query_start_loc, (torch.int32,))
    check.shape("query_start_loc", a.query_start_loc, (seqs + 1,))
    check.dtype("num_seqs", a.num_seqs, (torch.int32,))
    check.shape("num_seqs", a.num_seqs, (1,))

    floats = {
        "alibi_slopes": (a.alibi_slopes, (heads,)),
        "sinks": (a.sinks, (heads,)),
        "kv_scales": (a.kv_scales, (2, kv_heads)),
    }
    for name, (tensor, expected) in floats.items():
        if tensor is not None:
            check.dtype(name, tensor, (torch.float32,), reference=(torch.float64,))
            check.shape(name, tensor, expected)
    unscaled = a.kv_scales is None or a.kv_cache.dtype == torch.float8_e4m3fn
    check.that(unscaled, "kv_scales", "none, as kv_cache is not float8_e4m3fn", "a tensor")

    is_finite = abs(a.scale) <= torch.finfo(torch.float32).max
    check.that(is_finite, "scale", "a number that is finite in float32", a.scale)
    check.that(
        a.sliding_window is None or a.sliding_window >= 1, "sliding_window", "a count of 1 or more", a.sliding_window
    )
    # Below, the inverse of the cap overflows float32; above, the cap's rounding shows in the logits of a GPU's prefill.
    capped = a.soft_cap is None or 1e-30 <= a.soft_cap <= 1e3
    check.that(capped, "soft_cap", "a number in [1e-30, 1000]", a.soft_cap, "None leaves the logits as they are")
    lse = torch.empty(tokens, heads, dtype=accumulation_dtype(a.query.dtype), device=a.query.device)
    return torch.empty_like(a.query, memory_format=torch.contiguous_format), lse


def check_values(check: Check, a: Arguments) -> None:
    """Raises ArgumentError for a length, row or block id out of range, like CheckPagedAttentionValues in C++."""
    blocks, block_size = a.kv_cache.shape[1:3]
    (count,), starts, lengths = a.num_seqs.tolist(), a.query_start_loc.tolist(), a.context_lens.tolist()
    tables = a.block_tables.tolist()
    check.that(0 <= count <= len(lengths), "num_seqs", f"a count in [0, {len(lengths)}]", count)
    check.that(starts[0] == 0, "query_start_loc", 0, f"{starts[0]} at index 0")
    for seq, length in enumerate(lengths[:count]):
        start, end = starts[seq : seq + 2]
        in_order = start <= end <= a.query.shape[0]
        check.that(in_order, "query_start_loc", f"a row in [{start}, {a.query.shape[0]}]", f"{end} at index {seq + 1}")
        new_tokens, most = end - start, a.block_tables.shape[1] * block_size
        fits = new_tokens <= length <= most
        check.that(fits, "context_lens", f"a length in [{new_tokens}, {most}]", f"{length} at sequence {seq}")
        if new_tokens == 0:
            continue
        # Blocks that the sequence's first new token does not see are not read.
        first = 0 if a.sliding_window is None else max(0, length - new_tokens - a.sliding_window + 1)
        for index in range(first // block_size, -(-length // block_size)):
            block = tables[seq][index]
            where = f"{block} at sequence {seq}, index {index}"
            check.that(0 <= block < blocks, "block_tables", f"a block id in [0, {blocks})", where)
