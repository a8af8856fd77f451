"""vLLM's layers on pyxla's ops. Importing this module puts these classes in the place of vLLM's own."""

from __future__ import annotations

import torch
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers import rotary_embedding as rotary
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm

from pyxla.vllm.mesh import devices, op, product_and_norm
from pyxla.vllm.sharding import Columns, Rows

ops = torch.ops.xla_gpu


@CustomOp.register_oot(name="RMSNorm")
class XlaRMSNorm(RMSNorm):
    """RMSNorm; with a residual, the sum and its norm in one kernel."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._of_heads, self._devices = op("rms_norm", "rows"), devices()
        self._product_and_norm = product_and_norm()

    def forward_oot(self, x: torch.Tensor | Rows, residual: torch.Tensor | None = None):
        """As RMSNorm.forward_native."""
        if isinstance(x, Rows):
            if residual is not None and self.variance_size_override is None and x.is_pending:
                weight = self.weight if self.has_weight else None
                return self._product_and_norm(*x.operands, residual, weight, self.variance_epsilon), residual
            x = x.whole()
        if self.variance_size_override is not None:
            return self.forward_native(x, residual)
        weight = self.weight if self.has_weight else None
        if residual is None:
            norm = self._of_heads if x.dim() == 3 and x.shape[1] % self._devices == 0 else ops.rms_norm
            return norm(x, weight, self.variance_epsilon)
        return ops.fused_add_rms_norm(x, residual, weight, self.variance_epsilon), residual


@CustomOp.register_oot(name="SiluAndMul")
class XlaSiluAndMul(SiluAndMul):
    """SwiGLU's activation."""

    def __init__(self):
        super().__init__()
        self._by_device = op("silu_and_mul", "rows")

    def forward_oot(self, x: torch.Tensor | Columns) -> torch.Tensor:
        """As SiluAndMul.forward_native."""
        return self._by_device(x.by_device).flatten(1) if isinstance(x, Columns) else ops.silu_and_mul(x)


@CustomOp.register_oot(name="GeluAndMul")
class XlaGeluAndMul(GeluAndMul):
    """GEGLU's activation."""

    def __init__(self, approximate: str = "none"):
        super().__init__(approximate)
        self._by_device = op("gelu_and_mul", "rows")

    def forward_oot(self, x: torch.Tensor | Columns) -> torch.Tensor:
        """As GeluAndMul.forward_native."""
        if isinstance(x, Columns):
            return self._by_device(x.by_device, self.approximate).flatten(1)
        return ops.gelu_and_mul(x, self.approximate)


class _Rotary:
    """RotaryEmbedding on one kernel."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._rotate = op("rotary_embedding", "heads")

    def forward_oot(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None):
        """As RotaryEmbedding.forward_native."""
        if key is None:
            return self.forward_native(positions, query, key)
        tokens = positions.numel()
        heads = (t.view(tokens, -1, self.head_size) for t in (query, key))
        q, k = self._rotate(positions.flatten(), *heads, self.cos_sin_cache, self.is_neox_style)
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
    CustomOp.register_oot(name=_name)(type(f"Xla{_name}", (_Rotary, getattr(rotary, _name)), {}))
