"""The decoder: ops of `torch.ops.xla_gpu` between matrix products that are XLA's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from examples.llama.config import LlamaConfig
from pyxla.nn import AttentionMetadata, XlaGpuAttention, op_on

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh

ops = torch.ops.xla_gpu


class Layer(nn.Module):
    """One decoder layer; its weights are loaded by weights.py.

    On a mesh each device has its heads and its part of the MLP, and XLA adds up what `out` and `down` return: the rows
    of `qkv` and `gate_up` are those of the first device, then those of the second, and so on.
    """

    def __init__(self, config: LlamaConfig, dtype: torch.dtype, mesh: Mesh | None):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        heads, kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.devices = 1 if mesh is None else mesh.shape()["model"]
        self.eps = config.rms_norm_eps
        # Queries, keys and values in one product, which nothing takes apart; the gate and its factor in another.
        self.qkv = _weight(dtype, (heads + 2 * kv_heads) * self.head_dim, hidden)
        self.out = _weight(dtype, hidden, heads * self.head_dim)
        self.gate_up = _weight(dtype, 2 * inner, hidden)
        self.down = _weight(dtype, hidden, inner)
        self.attention_norm = _weight(dtype, hidden)
        self.mlp_norm = _weight(dtype, hidden)
        self.attention = XlaGpuAttention(
            heads, self.head_dim, 1 / math.sqrt(self.head_dim), kv_heads, mode="direct", mesh=mesh
        )
        self.rotary_and_cache = op_on(mesh, "rotary_and_cache", "heads")
        self.silu_and_mul = op_on(mesh, "silu_and_mul", "rows")

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        residual: torch.Tensor,
        cos_sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Attention and MLP of a step's tokens; `residual` and `kv_cache` are updated in place.

        Args:
            x: [tokens, hidden], the residual stream normalised by this layer's first norm.
            positions: [tokens], int32.
            residual: [tokens, hidden], without what this layer returns.
            cos_sin: [positions, head_dim], float32.
            kv_cache: this layer's.
            metadata: the step's.
        """
        tokens = x.shape[0]
        qkv = linear(x, self.qkv).view(tokens, -1, self.head_dim)
        slots, scales = metadata.slot_mapping, self.attention.kv_scales
        query = self.rotary_and_cache(positions, qkv, cos_sin, kv_cache, slots, scales)
        # Keys and values are in the cache.
        x = linear(self.attention(query, None, None, kv_cache, metadata).view(tokens, -1), self.out)
        x = ops.fused_add_rms_norm(x, residual, self.mlp_norm, self.eps)
        gate_up = linear(x, self.gate_up).view(tokens, self.devices, -1)
        return linear(self.silu_and_mul(gate_up).view(tokens, -1), self.down)


class Llama(nn.Module):
    """A Llama-architecture decoder over a paged cache.

    Args:
        config: its shape.
        dtype: of weights and activations; float32, bfloat16 or float16.
        mesh: its axis "model" deals out heads and the MLP; None: one device.
    """

    def __init__(self, config: LlamaConfig, dtype: torch.dtype, mesh: Mesh | None = None):
        super().__init__()
        self.config, self.dtype, self.mesh = config, dtype, mesh
        self.embedding = _weight(dtype, config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, dtype, mesh) for _ in range(config.num_hidden_layers))
        self.norm = _weight(dtype, config.hidden_size)
        self.head = self.embedding if config.tie_word_embeddings else _weight(dtype, *self.embedding.shape)
        self.register_buffer("cos_sin", cos_sin_table(config), persistent=False)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """The last hidden states, normalised: what `logits` takes.

        Args:
            tokens: [tokens], int32, the new tokens of all sequences one after the other.
            positions: [tokens], int32.
            kv_caches: one per layer; updated in place.
            metadata: the step's.

        Returns:
            [tokens, hidden], in the model's dtype.
        """
        eps = self.config.rms_norm_eps
        residual = embedding(tokens, self.embedding)
        x = ops.rms_norm(residual, self.layers[0].attention_norm, eps)
        # A layer's result is added by the norm behind it: of the next layer, or the last one.
        next_norms = [*(layer.attention_norm for layer in self.layers[1:]), self.norm]
        for layer, norm, kv_cache in zip(self.layers, next_norms, kv_caches, strict=True):
            x = layer(x, positions, residual, self.cos_sin, kv_cache, metadata)
            x = ops.fused_add_rms_norm(x, residual, norm, eps)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary] of hidden states [rows, hidden]."""
        return linear(hidden, self.head)


def _weight(dtype: torch.dtype, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)


def cos_sin_table(config: LlamaConfig) -> torch.Tensor:
    """[max_position_embeddings, head_dim], float32: the cosines of all pairs, then the sines; formed in float64.

    Source: Su et al., "RoFormer", 2021, arXiv:2104.09864; "llama3" stretches it as the Llama 3.1 models do:
    "The Llama 3 Herd of Models", 2024, arXiv:2407.21783.
    """
    frequencies = config.rope_theta ** -(torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    if config.rope["rope_type"] == "llama3":
        frequencies = _stretch(frequencies, **{name: v for name, v in config.rope.items() if name in _STRETCH})
    angles = torch.arange(config.max_position_embeddings, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1).float()


_STRETCH = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _stretch(
    frequencies: torch.Tensor,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
) -> torch.Tensor:
    """Slow rotations slower by `factor`, fast ones as they are, those between mixed."""
    turns = original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor)
