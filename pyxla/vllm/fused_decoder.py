"""vLLM's Llama on fewer kernels: one rotates and stores before an attention. In steps of few tokens, which last as long
as it takes to read the weights, one computes all between two attentions."""

from __future__ import annotations

import itertools

import torch
from torch.nn.functional import linear
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaForCausalLM

from pyxla.nn import AttentionMetadata
from pyxla.pjrt.cuda_plugin import gpus
from pyxla.pjrt.platform import requested_device
from pyxla.vllm.mesh import devices

ops = torch.ops.xla_gpu
# Limits of the op: tokens, what sizes are multiples of, and what the size of a head is one of.
MAX_TOKENS, GRANULE, HEAD_GRANULE = 64, 256, 32


def fuse(model: torch.nn.Module) -> torch.nn.Module:
    """The model, or the model on fused ops, if fused_decoder_layer takes its layers and has code.

    A model on several devices stays as it is: they would have to sum up inside the op.

    Args:
        model: vLLM's, loaded.
    """
    return FusedLlama(model) if devices() == 1 and _has_code() and _fits(model) else model


def _has_code() -> bool:
    """On a CPU separate products take as long."""
    return requested_device() == "CUDA" and all(gpu.capability == (9, 0) for gpu in gpus())


def _fits(model: torch.nn.Module) -> bool:
    """Whether all layers are Llama's with nothing added, in sizes that the op takes."""
    if type(model) is not LlamaForCausalLM or model.lm_head.weight.dtype not in (torch.bfloat16, torch.float16):
        return False
    return all(type(layer) is LlamaDecoderLayer and _layer_fits(layer) for layer in model.model.layers)


def _layer_fits(layer: LlamaDecoderLayer) -> bool:
    attention, mlp = layer.self_attn, layer.mlp
    products = attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj
    plain = all(isinstance(p.quant_method, UnquantizedLinearMethod) and p.bias is None for p in products)
    sizes = layer.hidden_size, attention.q_size, mlp.down_proj.input_size
    rotary = attention.rotary_emb
    # Longrope's has no style; Mistral's models, which are Llamas too, may scale the queries.
    turned = rotary.rotary_dim == attention.head_dim and getattr(rotary, "is_neox_style", False)
    turned &= attention.head_dim % HEAD_GRANULE == 0 and not getattr(attention, "do_llama_4_scaling", False)
    return plain and turned and all(size % GRANULE == 0 for size in sizes)


class FusedLlama(torch.nn.Module):
    """A Llama on rotary_and_cache; steps of at most MAX_TOKENS tokens are on fused_decoder_layer.

    Args:
        model: vLLM's.
    """

    def __init__(self, model: LlamaForCausalLM):
        super().__init__()
        self.model = model
        self.eps = model.model.norm.variance_epsilon

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The model's."""
        return self.model.compute_logits(hidden)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The hidden states, as the model's.

        Args:
            input_ids, positions: [tokens].
        """
        metadata, layers = get_forward_context().attn_metadata, self.model.model.layers
        residual = self.model.model.embed_tokens(input_ids)
        x = ops.rms_norm(residual, layers[0].input_layernorm.weight, self.eps)
        if len(input_ids) > MAX_TOKENS:
            norms = [*(layer.input_layernorm for layer in layers[1:]), self.model.model.norm]
            for layer, norm in zip(layers, norms, strict=True):
                x = self._layer(layer, x, residual, norm.weight, positions, metadata)
            return x
        query = _rotate(layers[0], linear(x, layers[0].self_attn.qkv_proj.weight), positions, metadata)
        for layer, following in itertools.pairwise(layers):
            query = self._between(layer, following, query, residual, positions, metadata)
        return self._finish(layers[-1], query, residual, metadata, self.model.model.norm.weight, None)

    def _layer(self, layer, x, residual, norm, positions, metadata: AttentionMetadata) -> torch.Tensor:
        """A layer and the norm that follows it, from its norm's result; adds to the residual, in place."""
        o_proj, post_attention_norm, gate_up_proj, down_proj = _weights(layer)
        query = _rotate(layer, linear(x, layer.self_attn.qkv_proj.weight), positions, metadata)
        x = linear(_attend(layer, query, metadata), o_proj)
        x = ops.fused_add_rms_norm(x, residual, post_attention_norm, self.eps)
        x = linear(ops.silu_and_mul(linear(x, gate_up_proj)), down_proj)
        return ops.fused_add_rms_norm(x, residual, norm, self.eps)

    def _between(self, layer, following, query, residual, positions, metadata: AttentionMetadata) -> torch.Tensor:
        """The attention of a layer and all up to the next one's queries; its keys and values go into its cache."""
        attention, cache = following.self_attn, following.self_attn.attn.kv_cache[0]
        norm, qkv = following.input_layernorm.weight, attention.qkv_proj.weight
        if cache.dtype != residual.dtype:
            x = self._finish(layer, query, residual, metadata, norm, qkv)
            return _rotate(following, x, positions, metadata)
        places = positions, attention.rotary_emb.cos_sin_cache, cache, metadata.slot_mapping
        weights = *_weights(layer), norm, qkv
        return ops.fused_decoder_layer_rotary(_attend(layer, query, metadata), residual, *weights, *places, self.eps)

    def _finish(self, layer, query, residual, metadata: AttentionMetadata, norm, qkv) -> torch.Tensor:
        weights = *_weights(layer), norm, qkv
        return ops.fused_decoder_layer(_attend(layer, query, metadata), residual, *weights, self.eps)


def _rotate(layer: LlamaDecoderLayer, qkv: torch.Tensor, positions, metadata: AttentionMetadata) -> torch.Tensor:
    """[tokens, heads, d], the queries; keys and values go into the layer's cache."""
    attention = layer.self_attn
    qkv = qkv.view(len(qkv), -1, attention.head_dim)
    table, cache = attention.rotary_emb.cos_sin_cache, attention.attn.kv_cache[0]
    return ops.rotary_and_cache(positions, qkv, table, cache, metadata.slot_mapping, attention.attn.impl.kv_scales)


def _attend(layer: LlamaDecoderLayer, query: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
    attention = layer.self_attn.attn
    return attention.impl.attend(query, attention.kv_cache[0], metadata).flatten(1)


def _weights(layer: LlamaDecoderLayer) -> tuple[torch.Tensor, ...]:
    mlp, norm = layer.mlp, layer.post_attention_layernorm
    return layer.self_attn.o_proj.weight, norm.weight, mlp.gate_up_proj.weight, mlp.down_proj.weight
