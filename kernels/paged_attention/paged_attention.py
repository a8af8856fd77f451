"""paged_attention: attention of a ragged batch of prefills and decodes over a paged cache of keys and values."""

import torch
from pyxla_kernels._paged_attention.reference import Arguments, attend, infer_results

from pyxla import Check, custom_op


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

    The new tokens are the last ones of their context: the i-th of n new tokens of a sequence with context L is at
    position L - n + i and sees the positions up to its own. Their keys and values are in the cache already. All
    lengths are data: other lengths in tensors of the same shapes cause no compilation.

    Args:
        query: [tokens, heads, d], the new tokens of all sequences one after the other; float32, bfloat16 or float16;
            d a multiple of 8 up to 256.
        kv_cache: [2, blocks, block_size, kv_heads, d] or [2, blocks, block_size, kv_heads * d], query's dtype or
            float8_e4m3fn; [0] the keys, [1] the values; block_size up to 256; heads a multiple of kv_heads. Slots that
            no token sees may hold anything, NaN included.
        context_lens: [seqs], int32; tokens in the cache for each sequence, the new ones included.
        block_tables: [seqs, max_blocks], int32; position j of a sequence is in block `table[j // block_size]`.
            Ids may repeat; entries after the context are not read.
        query_start_loc: [seqs + 1], int32; the new tokens of sequence s are rows [loc[s], loc[s + 1]), maybe none.
        num_seqs: [1], int32; sequences and rows past it are padding.
        scale: factor of the logits; finite in float32.
        sliding_window: a token sees itself and the `sliding_window - 1` tokens before it; None: all.
        soft_cap: logits become `soft_cap * tanh(logits / soft_cap)`, after scale, before bias and mask; 1e-30 to 1000,
            as it is computed in float32. None: no cap.
        alibi_slopes: [heads], float32; `slope * (key's position - query's position)` is added to a head's logits after
            the cap; None: no bias.
        sinks: [heads], float32; one more logit for each head, without scale and cap, which takes its share of the
            softmax and has no value. -inf: none for that head; None: none for any head.
        kv_scales: [2, kv_heads], float32, only with a float8_e4m3fn cache: a key is the stored one times
            `kv_scales[0, kv_head]`, a value the stored one times `kv_scales[1, kv_head]`. They are
            finite. None: ones.

    Returns:
        As query; zero in padding rows. Softmax and sums are computed in float32 and rounded once. On XLA a row depends
        bit for bit only on its own sequence.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank or shape other than the above, scales for a
            cache that is not float8_e4m3fn, a scale, window or soft cap out of range; on CPU tensors also a length, row
            or block id out of range.
        RuntimeError: a length, row or block id out of range on XLA:CPU, when the graph runs, with the same message.
            XLA:CUDA cannot raise: it fills the rows that depend on a wrong value with NaN (all rows, if num_seqs or
            query_start_loc are wrong).

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
    arXiv:2309.06180; the soft cap: Gemma 2, arXiv:2408.00118; the slopes: Press et al., "Train Short, Test Long", 2021,
    arXiv:2108.12409; the sinks: gpt-oss, arXiv:2508.10925.
    """
    return attend(Check("paged_attention"), Arguments(**locals()))[0]


@custom_op(results=["out", "lse"], library="paged_attention")
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
    """paged_attention together with the logarithm of each softmax's sum, with which partial results can be merged.

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
    return attend(Check("paged_attention_lse"), Arguments(**locals()))


@paged_attention.register_fake
def _(*arguments, **named) -> torch.Tensor:
    return infer_results(Check("paged_attention"), Arguments(*arguments, **named))[0]


@paged_attention_lse.register_fake
def _(*arguments, **named) -> tuple[torch.Tensor, torch.Tensor]:
    return infer_results(Check("paged_attention_lse"), Arguments(*arguments, **named))


def decode_tokens(
    query: torch.Tensor, kv_cache: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor, *others
) -> int:
    """New tokens up to which CUDA's decode kernel computes a sequence, like DecodeTokens in sequences.cuh."""
    tokens, heads, head_dim = query.shape
    kv_heads = kv_cache.shape[3:].numel() // head_dim
    seqs, keys, group = context_lens.shape[0], block_tables.shape[1] * kv_cache.shape[2], heads // kv_heads
    few, more, few_tiles = max(1, 16 // group), max(1, 32 // group), 44
    is_faster = seqs * kv_heads >= 256 or (2 * seqs * kv_heads <= few_tiles and keys <= 16384)
    is_covered = head_dim <= 128 and kv_cache.dtype != torch.float8_e4m3fn
    return more if is_faster and is_covered and tokens <= seqs * more else few


@paged_attention.register_workspace
@paged_attention_lse.register_workspace
def workspace_bytes(
    query: torch.Tensor, kv_cache: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor, *others
) -> int:
    """Bytes of the kernels' counters and stored results, like WorkspaceBytes in paged_attention.cu."""
    tokens, heads, head_dim = query.shape
    kv_heads = kv_cache.shape[3:].numel() // head_dim
    seqs, keys, group = context_lens.shape[0], block_tables.shape[1] * kv_cache.shape[2], heads // kv_heads

    tile_rows, split_keys, sequence_tiles, most_slots, few_tiles, shares = 16, 2048, 264, 2048, 44, 6
    most_tokens = decode_tokens(query, kv_cache, context_lens, block_tables)
    tiles = seqs * kv_heads * -(-most_tokens * group // tile_rows)
    few = few_tiles if seqs * kv_heads * -(-group // tile_rows) <= few_tiles else 0
    splits = min(-(-keys // split_keys), max(1, sequence_tiles // kv_heads))
    rows = (min(max(tiles * splits, few), most_slots) + few * shares) * tile_rows
    counters = 2 * tiles + few_tiles + 1

    if tokens > max(seqs, most_tokens) and (tokens > 128 or tokens > seqs * max(1, tile_rows // group)):
        least_rows, most_rows, split_keys, sequence_tiles = 128, 192, 1024, 128
        counters += (tokens * group // least_rows + seqs) * kv_heads + 1
        splits = min(keys // split_keys, sequence_tiles // kv_heads)
        most_tiles = tokens * group // least_rows + min(tokens * group // (tile_rows + 1), seqs)
        if splits > 1:
            prefill_rows = min(most_tiles * most_rows * kv_heads * splits, 4 * sequence_tiles * least_rows)
            rows = max(rows, prefill_rows)
    return -(-4 * counters // 256) * 256 + 4 * rows * (2 + head_dim)


BY_HEADS = {"query": 1, "kv_cache": 3, "alibi_slopes": 0, "sinks": 0, "kv_scales": 1}
paged_attention.register_sharding("heads", operands=BY_HEADS, results=[1])
paged_attention_lse.register_sharding("heads", operands=BY_HEADS, results=[1, 1])
