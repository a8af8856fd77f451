"""vLLM's layers on pyxla's ops. Importing this module puts these classes in the place of vLLM's own."""

from __future__ import annotations

import torch
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers import rotary_embedding as rotary
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm

ops = torch.ops.xla_gpu


@CustomOp.register_oot(name="RMSNorm")
class XlaRMSNorm(RMSNorm):
    """RMSNorm; with a residual, the sum and its norm in one kernel."""

    def forward_oot(self, x: torch.Tensor, residual: torch.Tensor | None = None):
        """As RMSNorm.forward_native."""
        if self.variance_size_override is not None:
            return self.forward_native(x, residual)
        weight = self.weight if self.has_weight else None
        if residual is None:
            return ops.rms_norm(x, weight, self.variance_epsilon)
        return ops.fused_add_rms_norm(x, residual, weight, self.variance_epsilon), residual


@CustomOp.register_oot(name="SiluAndMul")
class XlaSiluAndMul(SiluAndMul):
    """SwiGLU's activation."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """As SiluAndMul.forward_native."""
        return ops.silu_and_mul(x)


@CustomOp.register_oot(name="GeluAndMul")
class XlaGeluAndMul(GeluAndMul):
    """GEGLU's activation."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """As GeluAndMul.forward_native."""
        return ops.gelu_and_mul(x, self.approximate)


def _rotate(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None):
    if key is None:
        return self.forward_native(positions, query, key)
    tokens = positions.numel()
    heads = (t.view(tokens, -1, self.head_size) for t in (query, key))
    q, k = ops.rotary_embedding(positions.flatten(), *heads, self.cos_sin_cache, self.is_neox_style)
    return q.view(query.shape), k.view(key.shape)


# Those whose angles alone differ: all have RotaryEmbedding's forward.
for _name in (
    "RotaryEmbedding",
    "DynamicNTKAlphaRotaryEmbedding",
    "DynamicNTKScalingRotaryEmbedding",
    "LinearScalingRotaryEmbedding",
    "Llama3RotaryEmbedding",
    "NTKScalingRotaryEmbedding",
    "YaRNScalingRotaryEmbedding",
):
    CustomOp.register_oot(name=_name)(type(f"Xla{_name}", (getattr(rotary, _name),), {"forward_oot": _rotate}))
