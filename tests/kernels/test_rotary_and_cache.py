"""rotary_and_cache against the two ops that it combines: the same bits, in lazy calls and on CPU tensors."""

import pytest
import torch
import torch_xla
from pyxla_kernels.rotary_and_cache.cases import CASES

ops = torch.ops.xla_gpu


def bits(tensor):
    """The tensor's bytes, because a NaN differs from itself."""
    return tensor.cpu().contiguous().view(torch.uint8) if tensor.numel() else torch.empty(0)


def by_two_ops(positions, qkv, cos_sin_cache, kv_cache, slot_mapping, kv_scales, is_neox):
    kv_heads = kv_cache[0, 0, 0].numel() // qkv.shape[2] if kv_cache.dim() == 4 else kv_cache.shape[3]
    query, key, value = qkv.split([qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    query, key = ops.rotary_embedding(positions, query.contiguous(), key.contiguous(), cos_sin_cache, is_neox)
    ops.reshape_and_cache(key, value.contiguous(), kv_cache, slot_mapping, kv_scales)
    return query


@pytest.mark.parametrize("place", ["xla", "cpu"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_of_the_two_ops(case, place):
    """For every case, and so for each dtype, pairing and cache, and each path of the kernels."""
    device = torch_xla.device() if place == "xla" else torch.device("cpu")
    fused, apart = (
        {n: v.clone().to(device) if isinstance(v, torch.Tensor) else v for n, v in case.arguments().items()}
        for _ in range(2)
    )
    query, want = ops.rotary_and_cache(**fused), by_two_ops(**apart)
    assert query.shape == want.shape and query.dtype == want.dtype
    assert torch.equal(bits(query), bits(want))
    assert torch.equal(bits(fused["kv_cache"]), bits(apart["kv_cache"]))
