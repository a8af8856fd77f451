"""rotary_and_cache: rotates queries and keys, and writes keys and values into a paged cache, in place."""

import torch
from pyxla_kernels._kv_cache.reference import check_cache, check_slots_and_scales, store
from pyxla_kernels._rotary.reference import angles, check_angles, rotate

from pyxla import Check, custom_op

check = Check("rotary_and_cache")


@custom_op(mutates=["kv_cache"])
def rotary_and_cache(
    positions: torch.Tensor,
    qkv: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_scales: torch.Tensor | None = None,
    is_neox: bool = True,
) -> torch.Tensor:
    """In one kernel, rotary_embedding of a layer's queries and keys, and reshape_and_cache of its keys and values.

    Args:
        positions: [tokens], int32 or int64; the row of cos_sin_cache for each token, also if it is left out.
        qkv: [tokens, heads + 2 * kv_heads, d], the result of one product: the heads of the queries, at least one, then
            those of the keys, then those of the values; float32, bfloat16 or float16.
        cos_sin_cache: [max_position, rot_dim], qkv's dtype or float32; in a row the cosines of all pairs, then the
            sines; rot_dim even and at most d.
        kv_cache: [2, blocks, block_size, kv_heads, d] or [2, blocks, block_size, kv_heads * d], qkv's dtype or
            float8_e4m3fn; [0] the keys, [1] the values; updated in place.
        slot_mapping: [tokens], int32 or int64; slot `block * block_size + offset`, or -1 for a token that is left out.
            All other slots must differ: if a slot occurs twice, it is undefined which token it gets.
        kv_scales: [2, kv_heads], float32; only with a float8 cache, which then holds keys / kv_scales[0] and
            values / kv_scales[1]. None: ones. Values beyond float8's range become +-448.
        is_neox: pair j is (j, j + rot_dim / 2); False: (2 * j, 2 * j + 1), interleaved.

    Returns:
        [tokens, heads, d], the rotated queries, also those of tokens that are left out. Queries and keys are computed
        in float32 or better and rounded once to qkv's dtype, keys before they are written.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank or shape other than the above; scales for a
            cache that is not float8; on CPU tensors also a position or slot out of range.
        RuntimeError: a position or slot out of range on XLA:CPU, when the graph runs, with the same message. XLA:CUDA
            cannot raise: for a position out of range it writes NaN to the elements that it rotates, and a token whose
            slot is out of range is left out of the cache.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, arXiv:2104.09864; Kwon et
    al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023, arXiv:2309.06180.
    """
    kv_heads = heads_of_cache(kv_cache, qkv.shape[2])
    query, key, value = qkv.split([qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    cos, sin = angles(check, positions, qkv, cos_sin_cache)
    store(check, rotate(key, cos, sin, is_neox), value, kv_cache, slot_mapping, kv_scales)
    return rotate(query, cos, sin, is_neox)


@rotary_and_cache.register_fake
def _(
    positions: torch.Tensor,
    qkv: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_scales: torch.Tensor | None = None,
    is_neox: bool = True,
) -> torch.Tensor:
    check.dtype("qkv", qkv, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.rank("qkv", qkv, 3)
    tokens, all_heads, d = qkv.shape
    check_angles(check, qkv, positions, cos_sin_cache)

    check_cache(check, kv_cache, qkv.dtype)
    kv_heads = heads_of_cache(kv_cache, d)
    check.that(kv_heads is not None, "kv_cache", f"heads of qkv's size {d}", f"shape {tuple(kv_cache.shape)}")
    heads = all_heads - 2 * kv_heads
    check.that(heads > 0, "qkv", f"more heads than the {2 * kv_heads} of keys and values", all_heads)
    check_slots_and_scales(check, tokens, kv_heads, kv_cache, slot_mapping, kv_scales)
    return qkv.new_empty((tokens, heads, d))


# On a mesh qkv has the queries, keys and values of the first device, then those of the second, and so on. The rows of
# the projection's weights are in this order, so no head leaves its device.
rotary_and_cache.register_sharding("heads", operands={"qkv": 1, "kv_cache": 3, "kv_scales": 1}, results=[1])


def heads_of_cache(kv_cache: torch.Tensor, d: int) -> int | None:
    """How many heads of d elements the cache has; None if not a whole number."""
    if kv_cache.dim() == 4:
        return kv_cache.shape[3] // d if d and kv_cache.shape[3] % d == 0 else None
    return kv_cache.shape[3] if kv_cache.shape[4] == d else None
