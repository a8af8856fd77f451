"""Checks and reference shared by the ops that write keys and values into a paged cache."""

import torch

from pyxla import Check, accumulation_dtype

FLOAT8 = torch.float8_e4m3fn


def check_cache(check: Check, kv_cache: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises ArgumentError for a cache that does not fit keys of this dtype; the op itself checks the cache's heads."""
    check.dtype("kv_cache", kv_cache, (dtype, FLOAT8))
    shape = tuple(kv_cache.shape)
    check.that(len(shape) in (4, 5), "kv_cache", "rank 4 or 5", f"shape {shape}")
    check.that(shape[0] == 2, "kv_cache", "a first dimension of 2, keys and values", shape[0])


def check_slots_and_scales(
    check: Check,
    tokens: int,
    kv_heads: int,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_scales: torch.Tensor | None,
) -> None:
    """Raises ArgumentError for slots or scales whose dtype or shape does not fit the tokens, kv heads and cache."""
    check.dtype("slot_mapping", slot_mapping, (torch.int32, torch.int64))
    check.shape("slot_mapping", slot_mapping, (tokens,), hint="one slot per token; -1 leaves a token out")
    if kv_scales is not None:
        is_float8 = kv_cache.dtype == FLOAT8
        check.that(is_float8, "kv_scales", "none, as kv_cache is not float8_e4m3fn", "a tensor")
        check.dtype("kv_scales", kv_scales, (torch.float32,))
        check.shape("kv_scales", kv_scales, (2, kv_heads))


def store(
    check: Check,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_scales: torch.Tensor | None,
) -> None:
    """Writes keys and values to their slots. A slot out of range is skipped; on CPU tensors it raises ArgumentError."""
    blocks, block_size = kv_cache.shape[1:3]
    if key.device.type == "cpu":
        _check_slots(check, slot_mapping, blocks * block_size)
    tokens = ((slot_mapping >= 0) & (slot_mapping < blocks * block_size)).nonzero().flatten()
    slots = slot_mapping[tokens].long()
    # torch has no indexed assignment for float8, so it assigns the bytes.
    cache = kv_cache.view(torch.uint8) if kv_cache.dtype == FLOAT8 else kv_cache
    for index, new in enumerate((key, value)):
        rows = new[tokens]
        if kv_cache.dtype == FLOAT8 or kv_scales is not None:
            rows = rows.to(accumulation_dtype(rows.dtype))
            rows = rows if kv_scales is None else rows / kv_scales[index, :, None]
            rows = rows.clamp(-448, 448)
        rows = rows.to(kv_cache.dtype).view(cache.dtype).reshape(len(tokens), *cache.shape[3:])
        cache[index, slots // max(block_size, 1), slots % max(block_size, 1)] = rows


def _check_slots(check: Check, slot_mapping: torch.Tensor, slots: int) -> None:
    """Raises ArgumentError for a slot out of range, like CheckSlots in kv_store_ffi.h."""
    wrong = ((slot_mapping < -1) | (slot_mapping >= slots)).nonzero().flatten()
    if len(wrong):
        where = f"{int(slot_mapping[wrong[0]])} at token {int(wrong[0])}"
        check.that(False, "slot_mapping", f"-1 or a slot in [0, {slots})", where)
