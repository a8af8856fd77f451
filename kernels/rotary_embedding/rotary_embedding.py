"""rotary_embedding: rotates queries and keys by their positions, with a gradient; and its in-place form."""

import torch

from pyxla import Check, accumulation_dtype, custom_op


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
        Query and key, rotated; elements from rot_dim on as they are. Formed in float32 or better and rounded once.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank or shape other than the above; on CPU tensors
            also a position out of range.
        RuntimeError: on XLA:CPU, when the graph runs, for the latter, with the same message. XLA:CUDA cannot raise: it
            makes NaN of what it rotates of such a token.

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
    """rotary_embedding that updates query and key. On XLA there is no gradient.

    Where query and key have one size in bytes, a lazily traced step may copy both (docs/concept).

    Args:
        positions: as rotary_embedding's.
        query: [tokens, heads, d]; float32, bfloat16 or float16; updated in place.
        key: [tokens, kv_heads, d], query's dtype; updated in place.
        cos_sin_cache: as rotary_embedding's.
        is_neox: as rotary_embedding's.

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
    check.dtype("positions", positions, (torch.int32, torch.int64))
    check.shape("positions", positions, (tokens,), hint="one position per token")
    check.dtype("key", key, (query.dtype,))
    check.rank("key", key, 3)
    check.shape("key", key, (tokens, key.shape[1], d))
    dtypes = (torch.float32,) if query.dtype == torch.float32 else (query.dtype, torch.float32)
    check.dtype("cos_sin_cache", cos_sin_cache, dtypes)
    check.rank("cos_sin_cache", cos_sin_cache, 2)
    rot_dim = cos_sin_cache.shape[1]
    fits = rot_dim % 2 == 0 and rot_dim <= d
    check.that(fits, "cos_sin_cache", f"an even last dimension of at most {d}", rot_dim)


def angles(
    check: Check, positions: torch.Tensor, query: torch.Tensor, cos_sin_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, [tokens, 1, rot_dim / 2]; NaN, on CPU an ArgumentError, for a position out of range."""
    last = cos_sin_cache.shape[0]
    wrong = (positions < 0) | (positions >= last)
    if positions.device.type == "cpu" and bool(wrong.any()):
        token = int(wrong.nonzero()[0])
        check.that(False, "positions", f"a position in [0, {last})", f"{int(positions[token])} at token {token}")
    rows = cos_sin_cache.to(accumulation_dtype(query.dtype))[positions.masked_fill(wrong, 0)]
    return rows.masked_fill(wrong[:, None], torch.nan)[:, None].chunk(2, dim=-1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool) -> torch.Tensor:
    """x with its first elements rotated."""
    rot_dim = 2 * cos.shape[-1]
    rotated = x[..., :rot_dim].to(cos.dtype)
    a, b = rotated.chunk(2, dim=-1) if is_neox else (rotated[..., ::2], rotated[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin
    rotated = torch.cat([a, b], dim=-1) if is_neox else torch.stack([a, b], dim=-1).flatten(-2)
    return torch.cat([rotated.to(x.dtype), x[..., rot_dim:]], dim=-1)


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
