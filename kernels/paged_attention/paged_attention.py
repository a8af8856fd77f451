"""paged_attention: attention of a ragged batch of prefills and decodes over a paged cache of keys and values."""

import torch

from pyxla import Check, accumulation_dtype, custom_op


@custom_op
def paged_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    kv_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(soft_cap(scale * query . keys) + bias) . values, causal, for every new token of every sequence.

    The new tokens are the last ones of their context: the i-th of n new tokens of a sequence with context L sits at
    position L - n + i and sees the positions up to its own. Their keys and values are in the cache already. All
    lengths are data: other lengths in tensors of the same shapes compile nothing.

    Args:
        query: [tokens, heads, d], the new tokens of all sequences one after the other; float32, bfloat16 or float16;
            d a multiple of 8 up to 256.
        kv_cache: [2, blocks, block_size, kv_heads, d] or [2, blocks, block_size, kv_heads * d], query's dtype or
            float8_e4m3fn; [0] the keys, [1] the values; block_size up to 256; heads a multiple of kv_heads. Slots that
            no token sees may hold anything, NaN included.
        context_lens: [seqs], int32; tokens in the cache for each sequence, the new ones included.
        block_tables: [seqs, max_blocks], int32; position j of a sequence lies in block `table[j // block_size]`.
            Ids may repeat, entries behind the context are not read.
        query_start_loc: [seqs + 1], int32; the new tokens of sequence s are rows [loc[s], loc[s + 1]). None is legal.
        num_seqs: [1], int32; sequences and rows past it are padding.
        scale: factor of the logits.
        sliding_window: a token sees itself and the `sliding_window - 1` tokens before it; None: all.
        soft_cap: logits become `soft_cap * tanh(logits / soft_cap)`, after scale, before bias and mask; None: as they
            are.
        alibi_slopes: [heads], float32; `slope * (key's position - query's position)` is added to a head's logits after
            the cap; None: nothing.
        sinks: [heads], float32; one more logit of each head, as it is, which takes its share of the softmax and has no
            value. -inf: that head has none; None: no head has.
        kv_scales: [2, kv_heads], float32, only with a float8_e4m3fn cache: a key is what is stored times
            `kv_scales[0, kv_head]`, a value times `kv_scales[1, kv_head]`; None: ones.

    Returns:
        As query; zero in padding rows. Softmax and sums are formed in float32 and rounded once. On XLA a row depends
        bit for bit on its own sequence alone.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank or shape other than the above, scales for a
            cache that is not float8_e4m3fn, a scale that is not finite, a window below 1, a soft cap that is not above
            0; on CPU tensors also a length, row or block id out of range.
        RuntimeError: on XLA:CPU, when the graph runs, for the latter, with the same message. XLA:CUDA cannot raise: it
            fills the rows that depend on a wrong value with NaN (all rows, if num_seqs or query_start_loc are wrong).

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
    arXiv:2309.06180; the soft cap: Gemma 2, arXiv:2408.00118; the slopes: Press et al., "Train Short, Test Long", 2021,
    arXiv:2108.12409; the sinks: gpt-oss, arXiv:2508.10925.
    """
    return attend(Check("paged_attention"), **locals())[0]


@custom_op(library="paged_attention")
def paged_attention_lse(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    kv_scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """paged_attention together with the logarithm of each softmax's sum, by which partial results can be merged.

    Args:
        query, kv_cache, context_lens, block_tables, query_start_loc, num_seqs: as in paged_attention.
        scale, sliding_window, soft_cap, alibi_slopes, sinks, kv_scales: as there.

    Returns:
        What paged_attention returns, and lse: [tokens, heads], float32, the natural logarithm of the sum of e^logit
        over what the token sees, the sink included; -inf in padding rows.

    Raises:
        As paged_attention.

    Source: Dao et al., "FlashAttention", 2022, arXiv:2205.14135.
    """
    return attend(Check("paged_attention_lse"), **locals())


def attend(
    check: Check,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    kv_scales: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference of both ops: the result and the logarithm of the sums."""
    if query.device.type == "cpu":
        check_values(check, query, kv_cache, context_lens, block_tables, query_start_loc, num_seqs, sliding_window)
    wide = accumulation_dtype(query.dtype)
    tokens, heads, head_dim = query.shape
    cache = kv_cache.unflatten(3, (-1, head_dim)) if kv_cache.dim() == 4 else kv_cache
    # torch does not index float8 on the CPU, but its bytes.
    stored = cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
    block_size, kv_heads = cache.shape[2], cache.shape[3]
    starts = query_start_loc.tolist()
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    lse = torch.full((tokens, heads), -torch.inf, dtype=wide, device=query.device)
    for seq, length in enumerate(context_lens.tolist()[: int(num_seqs)]):
        new_tokens = starts[seq + 1] - starts[seq]
        if new_tokens == 0:
            continue
        window = length if sliding_window is None else sliding_window
        # Keys and values that the sequence's new tokens see.
        seen = torch.arange(max(0, length - new_tokens + 1 - window), length, device=query.device)
        blocks = block_tables[seq, seen // block_size].long()
        gathered = stored[:, blocks, seen % block_size].view(cache.dtype).to(wide)
        if kv_scales is not None:
            gathered = gathered * kv_scales.to(wide)[:, None, :, None]
        gathered = gathered.repeat_interleave(heads // kv_heads, dim=2)
        for row in range(starts[seq], starts[seq + 1]):
            # Cut to what this token sees, without a mask: a masked NaN would still be multiplied by zero.
            end = len(seen) - (starts[seq + 1] - 1 - row)
            keys, values = gathered[:, max(0, end - window) : end]
            logits = torch.einsum("hd,khd->hk", query[row].to(wide), keys) * scale
            if soft_cap is not None:
                logits = soft_cap * torch.tanh(logits / soft_cap)
            if alibi_slopes is not None:
                distance = torch.arange(1 - len(keys), 1, device=query.device)
                logits = logits + alibi_slopes.to(wide)[:, None] * distance
            if sinks is not None:
                logits = torch.cat([logits, sinks.to(wide)[:, None]], dim=1)
            weights = logits.softmax(dim=-1)[:, : len(keys)]
            out[row] = torch.einsum("hk,khd->hd", weights, values).to(query.dtype)
            lse[row] = logits.logsumexp(dim=-1)
    return out, lse


@paged_attention.register_fake
def _(*arguments, **named) -> torch.Tensor:
    return infer_results(Check("paged_attention"), *arguments, **named)[0]


@paged_attention_lse.register_fake
def _(*arguments, **named) -> tuple[torch.Tensor, torch.Tensor]:
    return infer_results(Check("paged_attention_lse"), *arguments, **named)


def infer_results(
    check: Check,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    kv_scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The checks of both ops and their results, empty."""
    check.dtype("query", query, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.rank("query", query, 3)
    tokens, heads, head_dim = query.shape
    supported = head_dim % 8 == 0 and 8 <= head_dim <= 256
    check.that(supported, "query", "a last dimension of 8, 16, ... 256", head_dim)

    check.dtype("kv_cache", kv_cache, (query.dtype, torch.float8_e4m3fn))
    shape = tuple(kv_cache.shape)
    check.that(len(shape) in (4, 5), "kv_cache", "rank 4 or 5", f"shape {shape}")
    check.that(shape[0] == 2, "kv_cache", "a first dimension of 2, keys and values", shape[0])
    check.that(1 <= shape[2] <= 256, "kv_cache", "a block size in [1, 256]", shape[2])
    fits = shape[3] % head_dim == 0 if len(shape) == 4 else shape[4] == head_dim
    check.that(fits, "kv_cache", f"heads of query's size {head_dim}", f"shape {shape}")
    kv_heads = shape[3] // head_dim if len(shape) == 4 else shape[3]
    grouped = kv_heads >= 1 and heads >= 1 and heads % kv_heads == 0
    check.that(grouped, "query", f"a positive multiple of {kv_heads} kv heads", heads)

    check.dtype("context_lens", context_lens, (torch.int32,))
    check.rank("context_lens", context_lens, 1)
    seqs = context_lens.shape[0]
    check.dtype("block_tables", block_tables, (torch.int32,))
    check.rank("block_tables", block_tables, 2)
    check.shape("block_tables", block_tables, (seqs, block_tables.shape[1]))
    check.dtype("query_start_loc", query_start_loc, (torch.int32,))
    check.shape("query_start_loc", query_start_loc, (seqs + 1,))
    check.dtype("num_seqs", num_seqs, (torch.int32,))
    check.shape("num_seqs", num_seqs, (1,))

    floats = {
        "alibi_slopes": (alibi_slopes, (heads,)),
        "sinks": (sinks, (heads,)),
        "kv_scales": (kv_scales, (2, kv_heads)),
    }
    for name, (tensor, expected) in floats.items():
        if tensor is not None:
            check.dtype(name, tensor, (torch.float32,), reference=(torch.float64,))
            check.shape(name, tensor, expected)
    unscaled = kv_scales is None or kv_cache.dtype == torch.float8_e4m3fn
    check.that(unscaled, "kv_scales", "none, as kv_cache is not float8_e4m3fn", "a tensor")

    check.finite("scale", scale)
    check.that(sliding_window is None or sliding_window >= 1, "sliding_window", "a count of 1 or more", sliding_window)
    capped = soft_cap is None or 0 < soft_cap < float("inf")
    check.that(capped, "soft_cap", "a finite number above 0", soft_cap)
    lse = torch.empty(tokens, heads, dtype=accumulation_dtype(query.dtype), device=query.device)
    return torch.empty_like(query, memory_format=torch.contiguous_format), lse


@paged_attention.register_workspace
@paged_attention_lse.register_workspace
def workspace_bytes(
    query: torch.Tensor, kv_cache: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor, *others
) -> int:
    """The decode kernel's counters and results of parts, as WorkspaceBytes in paged_attention_decode.cu."""
    _, heads, head_dim = query.shape
    kv_heads = kv_cache.shape[3:].numel() // head_dim
    tile_rows, chunk_keys, sequence_items, most_slots = 16, 512, 256, 2048
    tiles = context_lens.shape[0] * kv_heads * -(-(heads // kv_heads) // tile_rows)
    chunks = -(-block_tables.shape[1] * kv_cache.shape[2] // chunk_keys)
    slots = min(tiles * min(chunks, max(1, sequence_items // kv_heads)), most_slots)
    return -(-8 * tiles // 256) * 256 + 4 * slots * tile_rows * (2 + head_dim)


BY_HEADS = {"query": 1, "kv_cache": 3, "alibi_slopes": 0, "sinks": 0, "kv_scales": 1}
paged_attention.register_sharding("heads", operands=BY_HEADS, results=[1])
paged_attention_lse.register_sharding("heads", operands=BY_HEADS, results=[1, 1])


def check_values(
    check: Check,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor,
    sliding_window: int | None,
) -> None:
    """Raises ArgumentError for a length, row or block id out of range, as CheckValues in paged_attention_host.cc."""
    blocks, block_size = kv_cache.shape[1:3]
    (count,), starts, lengths = num_seqs.tolist(), query_start_loc.tolist(), context_lens.tolist()
    check.that(0 <= count <= len(lengths), "num_seqs", f"a count in [0, {len(lengths)}]", count)
    check.that(starts[0] == 0, "query_start_loc", 0, f"{starts[0]} at index 0")
    for seq, length in enumerate(lengths[:count]):
        start, end = starts[seq : seq + 2]
        in_order = start <= end <= query.shape[0]
        check.that(in_order, "query_start_loc", f"a row in [{start}, {query.shape[0]}]", f"{end} at index {seq + 1}")
        new_tokens, most = end - start, block_tables.shape[1] * block_size
        fits = new_tokens <= length <= most
        check.that(fits, "context_lens", f"a length in [{new_tokens}, {most}]", f"{length} at sequence {seq}")
        if new_tokens == 0:
            continue
        # Blocks that the sequence's first new token does not see are not read.
        first = 0 if sliding_window is None else max(0, length - new_tokens - sliding_window + 1)
        for index in range(first // block_size, -(-length // block_size)):
            block = int(block_tables[seq, index])
            where = f"{block} at sequence {seq}, index {index}"
            check.that(0 <= block < blocks, "block_tables", f"a block id in [0, {blocks})", where)
