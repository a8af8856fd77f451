"""reshape_and_cache: writes the keys and values of new tokens into a paged cache, in place."""

import torch

from pyxla import Check, accumulation_dtype, custom_op

check = Check("reshape_and_cache")

FLOAT8 = torch.float8_e4m3fn


@custom_op(mutates=["kv_cache"])
def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """kv_cache[:, slot_mapping[t]] = (key[t], value[t]) for every token t, the blocks of the cache seen as one row.

    Args:
        key: [tokens, kv_heads, d]; float32, bfloat16 or float16.
        value: as key.
        kv_cache: [2, blocks, block_size, kv_heads, d] or [2, blocks, block_size, kv_heads * d], key's dtype or
            float8_e4m3fn; [0] the keys, [1] the values; updated in place.
        slot_mapping: [tokens], int32 or int64; slot `block * block_size + offset`, or -1 for a token that is left out.
            The others differ from one another: which token a slot gets that occurs twice is not defined.
        kv_scales: [2, kv_heads], float32; only with a float8 cache, which then holds key / kv_scales[0] and
            value / kv_scales[1]. None: ones. What does not fit into float8 becomes +-448.

    Returns:
        None.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank or shape other than the above; scales for a
            cache that is not float8; on CPU tensors also a slot out of range.
        RuntimeError: on XLA:CPU, when the graph runs, for the latter, with the same message. XLA:CUDA cannot raise: it
            leaves out every token whose slot is out of range.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
    arXiv:2309.06180; the form is vLLM's.
    """
    blocks, block_size = kv_cache.shape[1:3]
    if key.device.type == "cpu":
        check_slots(slot_mapping, blocks * block_size)
    tokens = ((slot_mapping >= 0) & (slot_mapping < blocks * block_size)).nonzero().flatten()
    slots = slot_mapping[tokens].long()
    # float8 has no indexed assignment: as bytes.
    cache = kv_cache.view(torch.uint8) if kv_cache.dtype == FLOAT8 else kv_cache
    for index, new in enumerate((key, value)):
        rows = new[tokens]
        if kv_cache.dtype == FLOAT8 or kv_scales is not None:
            rows = rows.to(accumulation_dtype(rows.dtype))
            rows = rows if kv_scales is None else rows / kv_scales[index, :, None]
            rows = rows.clamp(-448, 448)
        rows = rows.to(kv_cache.dtype).view(cache.dtype).reshape(len(tokens), *cache.shape[3:])
        cache[index, slots // max(block_size, 1), slots % max(block_size, 1)] = rows


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

    check.dtype("kv_cache", kv_cache, (key.dtype, FLOAT8))
    shape = tuple(kv_cache.shape)
    check.that(len(shape) in (4, 5), "kv_cache", "rank 4 or 5", f"shape {shape}")
    check.that(shape[0] == 2, "kv_cache", "a first dimension of 2, keys and values", shape[0])
    fits = shape[3:] in ((kv_heads, d), (kv_heads * d,))
    check.that(fits, "kv_cache", f"heads as key's {tuple(key.shape)}", f"shape {shape}")

    check.dtype("slot_mapping", slot_mapping, (torch.int32, torch.int64))
    check.shape("slot_mapping", slot_mapping, (tokens,), hint="one slot per token; -1 leaves a token out")
    if kv_scales is not None:
        is_float8 = kv_cache.dtype == FLOAT8
        check.that(is_float8, "kv_scales", "none, as kv_cache is not float8_e4m3fn", "a tensor")
        check.dtype("kv_scales", kv_scales, (torch.float32,))
        check.shape("kv_scales", kv_scales, (2, kv_heads))


reshape_and_cache.register_sharding("heads", operands={"key": 1, "value": 1, "kv_cache": 3, "kv_scales": 1})


def check_slots(slot_mapping: torch.Tensor, slots: int) -> None:
    """Raises ArgumentError for a slot out of range, as CheckSlots in reshape_and_cache_ffi.cc."""
    wrong = ((slot_mapping < -1) | (slot_mapping >= slots)).nonzero().flatten()
    if len(wrong):
        where = f"{int(slot_mapping[wrong[0]])} at token {int(wrong[0])}"
        check.that(False, "slot_mapping", f"-1 or a slot in [0, {slots})", where)
