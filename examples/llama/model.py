"""The decoder: ops of `torch.ops.xla_gpu` between XLA's matrix products."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
import torch_xla.runtime
from torch import nn
from torch.nn.functional import embedding, linear

from examples.llama.config import LlamaConfig
from examples.llama.rotary import cos_sin_table
from pyxla.nn import AttentionMetadata, XlaGpuAttention, op_on, row_parallel_norm
from pyxla.pjrt.cuda_plugin import gpus

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh

ops = torch.ops.xla_gpu
# Limits of fused_decoder_layer (tokens, multiples of sizes) and of fused_decoder_layer_rotary (multiples of head_dim).
MAX_TOKENS, GRANULE, HEAD_GRANULE = 64, 256, 32


class Layer(nn.Module):
    """One decoder layer; its weights are loaded by weights.py.

    On a mesh each device has its heads and its part of the MLP, and the results of `out` and `down` are summed. The
    rows of `qkv` and `gate_up` are those of the first device, then those of the second, and so on.
    """

    def __init__(self, config: LlamaConfig, dtype: torch.dtype, mesh: Mesh | None, fused_sums: bool | None):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        heads, kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.devices = 1 if mesh is None else mesh.shape()["model"]
        self.eps = config.rms_norm_eps
        # Queries, keys and values are one matrix product, which is never split; the gate and its factor are another.
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
        self.product_and_norm = row_parallel_norm(mesh, fused_sums)

    def rotate(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """The queries of a step's tokens, [tokens, heads, head_dim]; keys and values go into `kv_cache`, in place.

        Args:
            qkv: [tokens, (heads + 2 * kv_heads) * head_dim], queries, keys and values.
            positions: [tokens], int32.
            cos_sin: [positions, head_dim], float32.
            kv_cache: this layer's.
            metadata: the step's.
        """
        slots, scales = metadata.slot_mapping, self.attention.kv_scales
        qkv = qkv.view(len(qkv), -1, self.head_dim)
        return self.rotary_and_cache(positions, qkv, cos_sin, kv_cache, slots, scales)

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """Attention of a step's tokens, [tokens, heads * head_dim], to a cache that contains their keys and values."""
        return self.attention(query, None, None, kv_cache, metadata).view(len(query), -1)

    def finish(
        self, attention: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, qkv: torch.Tensor | None, fused: bool
    ) -> torch.Tensor:
        """The rest of the layer, the norm after it, and the next layer's queries, keys and values.

        Args:
            attention: the result of `attend`.
            residual: [tokens, hidden], the residual stream; updated in place.
            norm: [hidden], the weight of the next layer's first norm, or of the last one.
            qkv: the next layer's weight; None after the last layer: returns the norm.
            fused: in one op, for few tokens.
        """
        if fused:
            weights = self.out, self.mlp_norm, self.gate_up, self.down, norm, qkv
            return ops.fused_decoder_layer(attention, residual, *weights, self.eps)
        tokens = attention.shape[0]
        x = self.product_and_norm(attention, self.out, residual, self.mlp_norm, self.eps)
        gate_up = linear(x, self.gate_up).view(tokens, self.devices, -1)
        x = self.silu_and_mul(gate_up).view(tokens, -1)
        x = self.product_and_norm(x, self.down, residual, norm, self.eps)
        return x if qkv is None else linear(x, qkv)

    def finish_fused_rotary(
        self,
        attention: torch.Tensor,
        residual: torch.Tensor,
        following: Layer,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """`finish` and the `rotate` of the layer that follows, in one op; `kv_cache` is that layer's."""
        weights = self.out, self.mlp_norm, self.gate_up, self.down, following.attention_norm, following.qkv
        places = positions, cos_sin, kv_cache, metadata.slot_mapping
        return ops.fused_decoder_layer_rotary(attention, residual, *weights, *places, self.eps)


class Llama(nn.Module):
    """A Llama-architecture decoder over a paged cache.

    Args:
        config: its shape.
        dtype: of weights and activations; float32, bfloat16 or float16.
        mesh: heads and the MLP are split over its axis "model"; None: one device.
        fused: whether steps of few tokens call fused_decoder_layer between two attentions; only without a mesh, and
            with a dtype and shape that the op takes. None: if these hold, on a GPU for which the op has code.
        fused_rotary: whether these steps call fused_decoder_layer_rotary, which also rotates the next layer's queries
            and keys and stores keys and values, if the op takes head_dim and the cache has `dtype`.
        fused_sums: whether fused_all_reduce_rms_norm sums over the mesh's devices, as in pyxla.nn.row_parallel_norm.
    """

    def __init__(
        self,
        config: LlamaConfig,
        dtype: torch.dtype,
        mesh: Mesh | None = None,
        *,
        fused: bool | None = None,
        fused_rotary: bool = True,
        fused_sums: bool | None = None,
    ):
        super().__init__()
        self.config, self.dtype, self.mesh = config, dtype, mesh
        self.fused = _can_fuse(config, dtype, mesh) if fused is None else fused
        self.fused_rotary = fused_rotary and config.head_dim % HEAD_GRANULE == 0
        self.embedding = _weight(dtype, config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, dtype, mesh, fused_sums) for _ in range(config.num_hidden_layers))
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
        """The last hidden states, normalised: the argument of `logits`.

        Args:
            tokens: [tokens], int32, the new tokens of all sequences one after the other.
            positions: [tokens], int32.
            kv_caches: one per layer; updated in place.
            metadata: the step's.

        Returns:
            [tokens, hidden], in the model's dtype.
        """
        residual = embedding(tokens, self.embedding)
        first = self.layers[0]
        fused = self.fused and len(tokens) <= MAX_TOKENS
        fused_rotary = fused and self.fused_rotary and kv_caches[0].dtype == self.dtype
        x = linear(ops.rms_norm(residual, first.attention_norm, first.eps), first.qkv)
        query = first.rotate(x, positions, self.cos_sin, kv_caches[0], metadata)
        layers = [*zip(self.layers, kv_caches, strict=True)]
        for (layer, kv_cache), (following, next_cache) in itertools.pairwise(layers):
            attention = layer.attend(query, kv_cache, metadata)
            places = positions, self.cos_sin, next_cache, metadata
            if fused_rotary:
                query = layer.finish_fused_rotary(attention, residual, following, *places)
            else:
                x = layer.finish(attention, residual, following.attention_norm, following.qkv, fused)
                query = following.rotate(x, *places)
        layer, kv_cache = layers[-1]
        return layer.finish(layer.attend(query, kv_cache, metadata), residual, self.norm, None, fused)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary] of hidden states [rows, hidden]."""
        return linear(hidden, self.head)


def _can_fuse(config: LlamaConfig, dtype: torch.dtype, mesh: Mesh | None) -> bool:
    sizes = config.hidden_size, config.intermediate_size, config.num_attention_heads * config.head_dim
    takes = mesh is None and dtype.itemsize == 2 and all(size % GRANULE == 0 for size in sizes)
    return takes and torch_xla.runtime.device_type() == "CUDA" and all(gpu.capability == (9, 0) for gpu in gpus())


def _weight(dtype: torch.dtype, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)
