"""Layers over a paged cache, fed with random tokens and compared with attention in float64."""

import math

import torch
import torch_xla

import pyxla
from pyxla.nn import PagedKVCache, XlaGpuAttention

DEVICE = torch_xla.device()
HEADS, KV_HEADS, D = 4, 2, 8
SCALE = 1 / math.sqrt(D)


def attention(query, keys, values, window=None, cap=None):
    """Attention of a sequence's last tokens, in float64: query [n, heads, d], keys and values [length, kv_heads, d]."""
    query, keys, values = (t.double() for t in (query, keys, values))
    keys, values = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (keys, values))
    logits = torch.einsum("nhd,khd->hnk", query, keys) * SCALE
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    length, new = len(keys), len(query)
    distance = torch.arange(length - new, length)[:, None] - torch.arange(length)
    unseen = (distance < 0) | (distance >= (window or length))
    return torch.einsum("hnk,khd->nhd", logits.masked_fill(unseen, -torch.inf).softmax(-1), values)


def rounded(rows, scales):
    """Keys and values [tokens, 2, kv_heads, d] as read from a float8 cache with these scales, in float64."""
    scales = scales[:, :, None]
    return (rows / scales).clamp(-448, 448).to(torch.float8_e4m3fn).double() * scales.double()


class Served:
    """Two layers over one cache; each sequence's input is kept for the comparison.

    Args:
        mode: of the layers.
        num_blocks: of the cache.
        dtype: of the cache.
        scales: [2, 2, kv_heads], the kv_scales of each layer, or None.
        mesh: of cache and layers.
        options: of the layers.
    """

    def __init__(self, mode, num_blocks=16, dtype=torch.float32, scales=None, mesh=None, **options):
        torch.manual_seed(0)
        self.cache = PagedKVCache(2, num_blocks, 4, KV_HEADS, D, dtype=dtype, mesh=mesh)
        self.layers = [
            XlaGpuAttention(HEADS, D, SCALE, KV_HEADS, mode=mode, mesh=mesh, kv_scales=own, **options).to(DEVICE)
            for own in (scales if scales is not None else (None, None))
        ]
        self.dtype, self.options = dtype, options
        self.scales = torch.ones(2, 2, KV_HEADS) if scales is None else scales
        self.given = {}

    def open(self, prompt=(), like=None):
        """A new sequence; it shares its prompt's prefix with the sequence `like`."""
        sequence = self.cache.open(prompt)
        shared = torch.empty(2, 0, 2, KV_HEADS, D) if like is None else self.given[like]
        self.given[sequence] = shared[:, : sequence.length]
        return sequence

    def fork(self, sequence):
        child = self.cache.fork(sequence)
        self.given[child] = self.given[sequence]
        return child

    def trace(self, query, key, value, metadata):
        """Both layers, each with its own keys and values."""
        layers = zip(self.layers, self.cache.layers, strict=True)
        return [layer(query, key[i], value[i], kv, metadata) for i, (layer, kv) in enumerate(layers)]

    def step(self, batch, tokens=8):
        """Extends the sequences by random tokens; returns the worst error of any row and the arguments of `trace`."""
        metadata = self.cache.extend(batch, tokens=tokens, seqs=4, max_blocks=6)
        query = torch.randn(tokens, HEADS, D)
        key, value = torch.randn(2, 2, tokens, KV_HEADS, D)
        arguments = (query.to(DEVICE), key.to(DEVICE), value.to(DEVICE), metadata)
        torch_xla.sync()
        outs = self.trace(*arguments)
        pyxla.sync()
        worst, row = 0.0, 0
        for sequence, count in batch:
            new = torch.stack([key, value], dim=2)[:, row : row + count]
            self.given[sequence] = torch.cat([self.given[sequence], new], dim=1)
            for layer, out in enumerate(outs):
                given = self.given[sequence][layer]
                keys, values = (given if self.dtype == torch.float32 else rounded(given, self.scales[layer])).unbind(1)
                want = attention(
                    query[row : row + count],
                    keys,
                    values,
                    self.options.get("sliding_window"),
                    self.options.get("soft_cap"),
                )
                worst = max(worst, (out.cpu()[row : row + count] - want).abs().max().item())
            row += count
        assert all(bool((out.cpu()[row:] == 0).all()) for out in outs)
        return worst, arguments
