"""paged_attention_flashinfer: paged_attention with FlashInfer's kernel for ragged batches as its device code.

It takes a query and a cache of bfloat16 or float16, and heads of 64 or 128. On XLA:CUDA every value that a new token of
a sequence sees must be finite, because the kernel multiplies it by zero for the sequence's other tokens; logits must be
within 3e4; and the softmax's weights are rounded to query's dtype before they are multiplied by the values.

Source: Ye et al., "FlashInfer: Efficient and Customizable Attention Engine for LLM Inference Serving", 2025,
arXiv:2501.01005.
"""

import torch
from pyxla_kernels._paged_attention.reference import Arguments

from pyxla import Check, implementation

flashinfer = implementation(__file__)

#: `devtool fuzz` changes none of them, so that all values that a token sees stay finite, as above.
FUZZ_KEEPS = (
    "query", "kv_cache", "context_lens", "block_tables", "query_start_loc", "num_seqs", "sliding_window",
)  # fmt: skip


@flashinfer.register_check
def _(check: Check, *arguments) -> None:
    """Like CheckSupported in paged_attention_flashinfer_ffi.cc."""
    a = Arguments(*arguments)
    check.dtype("query", a.query, (torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.that(a.query.shape[2] in (64, 128), "query", "a last dimension of 64 or 128", a.query.shape[2])
    check.that(a.query.numel() < 2**31, "query", "fewer than 2^31 elements", a.query.numel())
    check.dtype("kv_cache", a.kv_cache, (a.query.dtype,))
    positions = a.block_tables.numel() * a.kv_cache.shape[2]
    check.that(positions < 2**31, "block_tables", "fewer than 2^31 positions", positions)
    for name, tensor in (("alibi_slopes", a.alibi_slopes), ("sinks", a.sinks)):
        check.that(tensor is None, name, "None", "a tensor")


@flashinfer.register_workspace
def workspace_bytes(
    query: torch.Tensor, kv_cache: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor, *others
) -> int:
    """Bytes of FlashInfer's plan, made on the device; like PlanBytes in paged_attention_flashinfer_plan.h."""
    tokens, heads, head_dim = query.shape
    kv_heads = kv_cache.shape[3:].numel() // head_dim
    seqs, least_tile_rows = context_lens.shape[0], 16
    slots = tokens * (heads // kv_heads) // least_tile_rows + seqs
    return 4 * (2 * slots + seqs + 1 + block_tables.numel() + 1) + slots
