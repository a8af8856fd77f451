"""paged_attention_flashinfer: paged_attention with FlashInfer's kernel for ragged batches as its device code."""

import torch
from pyxla_kernels._paged_attention.reference import Arguments, attend, infer_results

from pyxla import Check, custom_op


@custom_op
def paged_attention_flashinfer(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """softmax(soft_cap(scale * query . keys)) . values, causal, for every new token of every sequence.

    The new tokens are the last ones of their context: the i-th of n new tokens of a sequence with context L sits at
    position L - n + i and sees the positions up to its own. Their keys and values are in the cache already. All
    lengths are data: other lengths in tensors of the same shapes compile nothing.

    Args:
        query: [tokens, heads, d], the new tokens of all sequences one after the other; bfloat16 or float16; d 64 or
            128; fewer than 2^31 elements.
        kv_cache: [2, blocks, block_size, kv_heads, d] or [2, blocks, block_size, kv_heads * d], query's dtype; [0] the
            keys, [1] the values; block_size up to 256; heads a multiple of kv_heads. Slots outside of every context,
            or before the window of a sequence's first new token, may hold anything. On XLA:CUDA the values that any
            new token of a sequence sees must be finite: for its other tokens they are multiplied by zero.
        context_lens: [seqs], int32; tokens in the cache for each sequence, the new ones included.
        block_tables: [seqs, max_blocks], int32; position j of a sequence lies in block `table[j // block_size]`.
            Ids may repeat, entries behind the context are not used; seqs * max_blocks * block_size below 2^31.
        query_start_loc: [seqs + 1], int32; the new tokens of sequence s are rows [loc[s], loc[s + 1]). None is legal.
        num_seqs: [1], int32; sequences and rows past it are padding.
        scale: factor of the logits, which are to stay within 3e4 on XLA:CUDA.
        sliding_window: a token sees itself and the `sliding_window - 1` tokens before it; None: all.
        soft_cap: logits become `soft_cap * tanh(logits / soft_cap)`, after scale, before the mask; None: as they are.

    Returns:
        As query; zero in padding rows. On XLA:CPU formed in float32 and rounded once; on XLA:CUDA the softmax's weights
        are rounded to query's dtype before they meet the values.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank or shape other than the above, a scale that
            is not finite, a window below 1, a soft cap that is not above 0; on CPU tensors also a length, row or block
            id out of range.
        RuntimeError: on XLA:CPU, when the graph runs, for the latter, with the same message. XLA:CUDA cannot raise: it
            fills the rows that depend on a wrong value with NaN (all rows, if num_seqs or query_start_loc are wrong).

    Source: Ye et al., "FlashInfer: Efficient and Customizable Attention Engine for LLM Inference Serving", 2025,
    arXiv:2501.01005.
    """
    return attend(Check("paged_attention_flashinfer"), Arguments(**locals()))[0]


@paged_attention_flashinfer.register_fake
def _(*arguments, **named) -> torch.Tensor:
    check, a = Check("paged_attention_flashinfer"), Arguments(*arguments, **named)
    check.dtype("query", a.query, (torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.rank("query", a.query, 3)
    check.that(a.query.shape[2] in (64, 128), "query", "a last dimension of 64 or 128", a.query.shape[2])
    check.that(a.query.numel() < 2**31, "query", "fewer than 2^31 elements", a.query.numel())
    check.dtype("kv_cache", a.kv_cache, (a.query.dtype,))
    out, _ = infer_results(check, a)
    positions = a.block_tables.numel() * a.kv_cache.shape[2]
    check.that(positions < 2**31, "block_tables", "fewer than 2^31 positions", positions)
    return out


@paged_attention_flashinfer.register_workspace
def workspace_bytes(
    query: torch.Tensor, kv_cache: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor, *others
) -> int:
    """FlashInfer's plan, which a kernel writes on the device, as PlanBytes in paged_attention_flashinfer_plan.h."""
    tokens, heads, head_dim = query.shape
    kv_heads = kv_cache.shape[3:].numel() // head_dim
    seqs, least_tile_rows = context_lens.shape[0], 16
    slots = tokens * (heads // kv_heads) // least_tile_rows + seqs
    return 4 * (2 * slots + seqs + 1 + block_tables.numel() + 1) + slots


paged_attention_flashinfer.register_sharding("heads", operands={"query": 1, "kv_cache": 3}, results=[1])
