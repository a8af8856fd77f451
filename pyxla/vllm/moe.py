"""vLLM's mixture of experts on pyxla's ops. Importing this module puts these classes in the place of vLLM's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.cpu_fused_moe import grouped_topk
from vllm.model_executor.layers.fused_moe.layer import FusedMoE, UnquantizedFusedMoEMethod

from pyxla.torch_ops.custom_op import find_op
from pyxla.vllm.mesh import devices, op
from pyxla.vllm.refusal import refuse_unless
from pyxla.vllm.releases import shared_experts_layer

# Each device has a part of the inputs: the results are its addends, those of all devices after each other.
find_op("grouped_product").register_sharding("inputs", operands={"x": 2, "weight": 2, "bias": 0}, results=[0])


def _swigluoai(x: torch.Tensor) -> torch.Tensor:
    """gpt-oss's activation, of gates and factors that take turns."""
    limit, slope = 7.0, 1.702
    gate, up = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(slope * gate)


def _activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """An activation of ACTIVATIONS, of [..., devices, 2 inner sizes of a device]."""
    return _swigluoai if name == "swigluoai" else op(f"{name}_and_mul", "rows")


ACTIVATIONS = "silu", "gelu", "swigluoai"


def route(layer: FusedMoE, x: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses the experts of each token, as FusedMoE.select_experts, which calls a kernel of vLLM's own.

    Args:
        layer: vLLM's.
        x: [tokens, hidden size].
        logits: [tokens, experts], the router's.

    Returns:
        The weights and numbers of the chosen experts, [tokens, top_k].
    """
    common = {"hidden_states": x, "gating_output": logits, "topk": layer.top_k, "renormalize": layer.renormalize}
    bias = layer.e_score_correction_bias
    if layer.use_grouped_topk:
        return grouped_topk(
            **common,
            num_expert_group=layer.num_expert_group,
            topk_group=layer.topk_group,
            scoring_func=layer.scoring_func,
            routed_scaling_factor=layer.routed_scaling_factor,
            e_score_correction_bias=bias,
        )
    if bias is None and layer.custom_routing_function is not None:
        return layer.custom_routing_function(**common)
    scores = logits.float().softmax(dim=-1)
    experts = (scores if bias is None else scores + bias).topk(layer.top_k, dim=-1).indices
    weights = scores.gather(1, experts)
    if layer.renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights if bias is None else weights * layer.routed_scaling_factor, experts


def mix(layer: FusedMoE, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The sum of what the chosen experts make of each token: [tokens, hidden size].

    Args:
        layer, x, logits: as `route`.
    """
    weights, experts = route(layer, x, logits)
    weights = weights[..., None]
    # Padding has no slot in the cache. It would make the products read the weights of more experts.
    is_padding = get_forward_context().attn_metadata.slot_mapping < 0
    experts = torch.where(is_padding[:, None], -1, experts).to(torch.int32)
    rows = x[:, None]
    if layer.apply_router_weight_on_input:
        rows = rows * weights.to(x.dtype)
    hidden = layer.into_experts(rows, layer.w13_weight, experts, getattr(layer, "w13_bias", None))
    hidden = layer.activate(hidden.unflatten(2, (devices(), -1))).flatten(2)
    out = layer.out_of_experts(hidden, layer.w2_weight, experts, getattr(layer, "w2_bias", None)).float()
    out = out.unflatten(0, (devices(), -1))
    return (out if layer.apply_router_weight_on_input else out * weights).sum(dim=(0, 2)).to(x.dtype)


@CustomOp.register_oot(name="UnquantizedFusedMoEMethod")
class XlaUnquantizedMethod(UnquantizedFusedMoEMethod):
    """Makes and loads the weights of a layer, and looks for no kernels of others.

    vLLM's own imports FlashInfer where it finds it, also where there are its headers alone.
    """

    def __init__(self, moe: FusedMoEConfig):
        super(UnquantizedFusedMoEMethod, self).__init__(moe)
        self.rocm_aiter_moe_enabled = self.flashinfer_cutlass_moe_enabled = False


class _Experts:
    """What takes the place of both of vLLM's layers."""

    # The model calls its router.
    gate = None

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        method = type(self.quant_method)
        refuse_unless(method is XlaUnquantizedMethod, "experts", "weights that are not quantised", method.__name__)
        shares = self.tp_size * self.ep_size
        refuse_unless(shares == 1, "experts", "all of each on one device", f"one of {shares} shares")
        refuse_unless(not self.zero_expert_num, "experts", "experts with weights", "zero experts")
        known = " or ".join(ACTIVATIONS)
        refuse_unless(self.activation in ACTIVATIONS, "activation of the experts", known, self.activation)
        self.into_experts, self.out_of_experts = op("grouped_product", "columns"), op("grouped_product", "inputs")
        self.activate = _activation(self.activation)

    def forward_oot(self, hidden_states: torch.Tensor, router_logits: torch.Tensor):
        """As FusedMoE.forward_native, whose op vllm::moe_forward cannot be part of a compiled step."""
        out = mix(self, hidden_states, router_logits)
        return out if self.shared_experts is None else (self.shared_experts(hidden_states), out)


@CustomOp.register_oot(name="FusedMoE")
class XlaFusedMoE(_Experts, FusedMoE):
    """A mixture of experts."""


@CustomOp.register_oot(name="SharedFusedMoE")
class XlaSharedFusedMoE(_Experts, shared_experts_layer()):
    """The same with experts that see every token, which are vLLM's own layer."""
