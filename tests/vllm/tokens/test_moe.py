"""The mixture of experts: what XLA makes of it, and every way of vLLM's to choose and mix experts."""

from types import SimpleNamespace

import pytest
import torch

import pyxla
from tests.vllm.engine import MARKS, MODES, engine, runner_of

pytestmark = MARKS
TOKENS, EXPERTS, TOP_K, HIDDEN, INNER = 7, 8, 3, 16, 24


@pytest.mark.parametrize("mode", MODES)
def test_a_step_reads_the_weights_in_grouped_products_alone(folder_of, mode):
    runner = runner_of(engine(folder_of("mixtral"), mode))
    with pyxla.inspecting() as seen:
        runner.run_smallest_step()
    (module,) = seen.modules
    layers = 2
    pyxla.assert_custom_calls(seen, "grouped_product", 2 * layers)
    pyxla.assert_custom_calls(seen, "silu_and_mul", layers)
    pyxla.assert_no_copies(seen, "reshape_and_cache")
    assert len(module.aliases) == layers
    for shape in ("f32[4,256,64]", "f32[4,64,128]"):
        instructions = [line for line in module.after.splitlines() if " = " in line and shape in line]
        users = [line for line in instructions if " parameter(" not in line]
        assert len(users) == layers
        assert all("xla_gpu_grouped_product" in user for user in users)


@pytest.fixture(scope="module")
def config(folder_of):
    """vLLM's configuration, of an engine that has set up what a layer asks for."""
    return engine(folder_of("mixtral"), "direct").llm_engine.vllm_config


def layer_of(config, **options):
    """A layer with random weights, on the host."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.fused_moe import FusedMoE

    sizes = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden_size": HIDDEN, "intermediate_size": INNER}
    with set_current_vllm_config(config):
        # vLLM wants names that differ.
        name = f"layer{len(config.compilation_config.static_forward_context)}"
        layer = FusedMoE(**sizes, prefix=name, **options)
    torch.manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer


def sigmoid_of_the_best(hidden_states, gating_output, topk, renormalize):
    """Llama 4's way."""
    logits, experts = torch.topk(gating_output, topk, dim=-1)
    return torch.sigmoid(logits), experts


def of_experts(layer, x, weights, experts):
    """The same by torch, expert by expert."""
    out = torch.zeros_like(x)
    for token, slot in torch.cartesian_prod(torch.arange(len(x)), torch.arange(experts.shape[1])):
        expert, weight, row = experts[token, slot], weights[token, slot], x[token]
        bias = [getattr(layer, name)[expert] if hasattr(layer, name) else 0 for name in ("w13_bias", "w2_bias")]
        before, after = (weight, 1) if layer.apply_router_weight_on_input else (1, weight)
        hidden = layer.w13_weight[expert] @ (row * before) + bias[0]
        if layer.activation == "swigluoai":
            gate, up = hidden[::2].clamp(max=7), hidden[1::2].clamp(-7, 7)
            hidden = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        else:
            gate, up = hidden.chunk(2)
            hidden = getattr(torch.nn.functional, layer.activation)(gate) * up
        out[token] += (layer.w2_weight[expert] @ hidden + bias[1]) * after
    return out


GROUPS = {"use_grouped_topk": True, "num_expert_group": 4, "topk_group": 2}


@pytest.mark.parametrize(
    "options",
    [
        {"renormalize": True},
        {"renormalize": False, "activation": "gelu"},
        {"has_bias": True, "activation": "swigluoai"},
        {"apply_router_weight_on_input": True, "has_bias": True},
        {"custom_routing_function": sigmoid_of_the_best},
        {"e_score_correction_bias": True, "routed_scaling_factor": 2.5},
        GROUPS | {"renormalize": False},
        GROUPS | {"scoring_func": "sigmoid", "routed_scaling_factor": 2.5},
        GROUPS | {"scoring_func": "sigmoid", "e_score_correction_bias": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_every_way_to_choose_and_mix(config, options):
    """Against torch with the experts that vLLM's own functions choose. Padding gets zeros."""
    import torch_xla
    from vllm.forward_context import ForwardContext, override_forward_context

    generator = torch.Generator().manual_seed(1)
    x, logits = (torch.randn(TOKENS, size, generator=generator) for size in (HIDDEN, EXPERTS))
    if "e_score_correction_bias" in options:
        options = options | {"e_score_correction_bias": torch.nn.Parameter(torch.randn(EXPERTS), requires_grad=False)}
    layer = layer_of(config, **options)
    weights, experts = chosen_by_vllm(layer, x, logits)
    with torch.no_grad():
        want = of_experts(layer, x, weights, experts)
    slots = torch.arange(TOKENS, dtype=torch.int32)
    slots[4:] = -1
    device = torch_xla.device()
    layer.to(device)
    metadata = SimpleNamespace(slot_mapping=slots.to(device))
    with torch.no_grad(), override_forward_context(ForwardContext({}, metadata, 0)):
        got = layer(x.to(device), logits.to(device)).cpu()
    torch.testing.assert_close(got[:4], want[:4], rtol=1e-4, atol=1e-5)
    assert (got[4:] == 0).all()


def chosen_by_vllm(layer, x, logits):
    """By FusedMoE.select_experts; for the plain softmax, whose kernel is not there, by transformers' formula."""
    from vllm.model_executor.layers.fused_moe import FusedMoE

    if layer.use_grouped_topk or layer.custom_routing_function or layer.e_score_correction_bias is not None:
        names = ("top_k", "use_grouped_topk", "renormalize", "topk_group", "num_expert_group")
        names += ("custom_routing_function", "scoring_func", "routed_scaling_factor", "e_score_correction_bias")
        return FusedMoE.select_experts(x, logits, **{name: getattr(layer, name) for name in names})[:2]
    weights, experts = torch.softmax(logits, dim=1).topk(layer.top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True) if layer.renormalize else weights, experts


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dp_size": 2}, "experts: expected all of each on one device, got one of 2 shares"),
        ({"activation": "relu2"}, "activation of the experts: expected silu or gelu or swigluoai, got relu2"),
        (
            {"zero_expert_num": 2, "zero_expert_type": "identity"},
            "experts: expected experts with weights, got zero experts",
        ),
    ],
)
def test_what_a_layer_cannot_have(config, options, expected):
    with pytest.raises(pyxla.PyxlaError) as caught:
        layer_of(config, **options)
    assert caught.value.message == f"vllm: {expected}"


def test_quantised_experts_are_refused(config):
    from vllm.model_executor.layers.quantization.experts_int8 import ExpertsInt8Config

    with pytest.raises(pyxla.PyxlaError) as caught:
        layer_of(config, quant_config=ExpertsInt8Config())
    assert caught.value.message == "vllm: experts: expected weights that are not quantised, got ExpertsInt8MoEMethod"
