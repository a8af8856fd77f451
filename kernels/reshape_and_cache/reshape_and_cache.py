"""reshape_and_cache: writes the keys and values of new tokens into a paged cache, in place."""

import torch
from pyxla_kernels._kv_cache.reference import check_cache, check_slots_and_scales, store

from pyxla import Check, custom_op

check = Check("reshape_and_cache")


@custom_op(mutates=["kv_cache"])
def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """kv_cache[:, slot_mapping[t]] = (key[t], value[t]) for every token t, with the cache's blocks seen as one row.

    Args:
        key: [tokens, kv_heads, d]; float32, bfloat16 or float16.
        value: as key.
        kv_cache: [2, blocks, block_size, kv_heads, d] or [2, blocks, block_size, kv_heads * d], key's dtype or
            float8_e4m3fn; [0] the keys, [1] the values; updated in place.
        slot_mapping: [tokens], int32 or int64; slot `block * block_size + offset`, or -1 for a token that is left out.
            All other slots must differ: if a slot occurs twice, it is undefined which token it gets.
        kv_scales: [2, kv_heads], float32; only with a float8 cache, which then holds key / kv_scales[0] and
            value / kv_scales[1]. None: ones. Values beyond float8's range become +-448.

    Returns:
        None.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank or shape other than the above; scales for a
            cache that is not float8; on CPU tensors also a slot out of range.
        RuntimeError: a slot out of range on XLA:CPU, when the graph runs, with the same message. XLA:CUDA cannot raise:
            it leaves out every token whose slot is out of range.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
    arXiv:2309.06180; the form is vLLM's.
    """
    store(check, key, value, kv_cache, slot_mapping, kv_scales)


@reshape_and_cache.register_fake
def _(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_scales: torch.Tensor | None = None,
) -> None:
    check.dtype("key", key, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.rank("key", key, 3)
    tokens, kv_heads, d = key.shape
    check.dtype("value", value, (key.dtype,))
    check.shape("value", value, key.shape)

    check_cache(check, kv_cache, key.dtype)
    shape = tuple(kv_cache.shape)
    fits = shape[3:] in ((kv_heads, d), (kv_heads * d,))
    check.that(fits, "kv_cache", f"heads as key's {tuple(key.shape)}", f"shape {shape}")

    check_slots_and_scales(check, tokens, kv_heads, kv_cache, slot_mapping, kv_scales)


reshape_and_cache.register_sharding("heads", operands={"key": 1, "value": 1, "kv_cache": 3, "kv_scales": 1})
