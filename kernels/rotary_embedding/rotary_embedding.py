"""rotary_embedding: rotates queries and keys by their positions, with a gradient; and its in-place form."""

import torch
from pyxla_kernels._rotary.reference import angles, check_angles, rotate

from pyxla import Check, custom_op


@custom_op
def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotates the first rot_dim elements of every head, pair by pair: (a * cos - b * sin, b * cos + a * sin).

    Args:
        positions: [tokens], int32 or int64; the row of cos_sin_cache for each token.
        query: [tokens, heads, d]; float32, bfloat16 or float16.
        key: [tokens, kv_heads, d], query's dtype.
        cos_sin_cache: [max_position, rot_dim], query's dtype or float32; in a row the cosines of all pairs, then the
            sines; rot_dim even and at most d. It has no gradient.
        is_neox: pair j is (j, j + rot_dim / 2); False: (2 * j, 2 * j + 1), interleaved.

    Returns:
        Query and key, rotated; elements from rot_dim on are unchanged. Computed in float32 or better and rounded once.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank or shape other than the above; on CPU tensors
            also a position out of range.
        RuntimeError: a position out of range on XLA:CPU, when the graph runs, with the same message. XLA:CUDA cannot
            raise: it writes NaN to the elements of that token that it rotates.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, arXiv:2104.09864; the form
    is vLLM's.
    """
    cos, sin = angles(Check("rotary_embedding"), positions, query, cos_sin_cache)
    return rotate(query, cos, sin, is_neox), rotate(key, cos, sin, is_neox)


@custom_op(mutates=["query", "key"], library="rotary_embedding")
def rotary_embedding_inplace(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> None:
    """rotary_embedding that updates query and key in place. On XLA there is no gradient.

    If query and key have the same size in bytes, a lazily traced step may copy both (docs/concept).

    Args:
        positions: as in rotary_embedding.
        query: [tokens, heads, d]; float32, bfloat16 or float16; updated in place.
        key: [tokens, kv_heads, d], query's dtype; updated in place.
        cos_sin_cache: as in rotary_embedding.
        is_neox: as in rotary_embedding.

    Returns:
        None.

    Raises:
        ArgumentError: as rotary_embedding.
        RuntimeError: as rotary_embedding.

    Source: as rotary_embedding.
    """
    cos, sin = angles(Check("rotary_embedding_inplace"), positions, query, cos_sin_cache)
    query.copy_(rotate(query, cos, sin, is_neox))
    key.copy_(rotate(key, cos, sin, is_neox))


@rotary_embedding.register_fake
def _(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_arguments(Check("rotary_embedding"), positions, query, key, cos_sin_cache)
    contiguous = torch.contiguous_format
    return torch.empty_like(query, memory_format=contiguous), torch.empty_like(key, memory_format=contiguous)


@rotary_embedding_inplace.register_fake
def _(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> None:
    check_arguments(Check("rotary_embedding_inplace"), positions, query, key, cos_sin_cache)


def check_arguments(
    check: Check, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_cache: torch.Tensor
) -> None:
    """Raises ArgumentError for a dtype or shape that the ops do not take."""
    check.dtype("query", query, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.rank("query", query, 3)
    tokens, _, d = query.shape
    check.dtype("key", key, (query.dtype,))
    check.rank("key", key, 3)
    check.shape("key", key, (tokens, key.shape[1], d))
    check_angles(check, query, positions, cos_sin_cache)


def setup_context(ctx, inputs, output) -> None:
    positions, _, _, cos_sin_cache, ctx.is_neox = inputs
    ctx.save_for_backward(positions, cos_sin_cache)


def backward(ctx, grad_query: torch.Tensor, grad_key: torch.Tensor):
    """Gradients of query and key: the results' gradients, rotated by minus the angles."""
    positions, cos_sin_cache = ctx.saved_tensors
    cos, sin = cos_sin_cache.chunk(2, dim=-1)
    back = torch.cat([cos, -sin], dim=-1)
    return None, *rotary_embedding(positions, grad_query, grad_key, back, ctx.is_neox), None, None


rotary_embedding.register_autograd(backward, setup_context=setup_context)


rotary_embedding.register_sharding("heads", operands={"query": 1, "key": 1}, results=[1, 1])
rotary_embedding_inplace.register_sharding("heads", operands={"query": 1, "key": 1})
