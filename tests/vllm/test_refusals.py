"""Whatever is not there is refused by name: a server at its start, a request with HTTP 400."""

import pytest

import pyxla
from tests.vllm.engine import MARKS, engine
from tests.vllm.models import VOCABULARY

pytestmark = MARKS
# Quantised weights, in the form of compressed-tensors.
WEIGHTS = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}


def config(folder, **options):
    """vLLM's configuration, which the platform checks."""
    from vllm.engine.arg_utils import EngineArgs

    chosen = {"dtype": "float32", "max_model_len": 128} | options
    return EngineArgs(model=str(folder), **chosen).create_engine_config()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"tensor_parallel_size": 4},
            "tensor_parallel_size: expected a divisor of 2, the heads of keys and values, got 4",
        ),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: expected 1, got 2"),
        ({"data_parallel_size": 2, "data_parallel_backend": "ray"}, "data_parallel_backend: expected mp, got ray"),
        ({"enable_lora": True}, "LoRA: expected none, got adapters"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
            "speculative decoding: expected none, got a draft",
        ),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype: expected auto, fp8 or fp8_e4m3, got fp8_e5m2"),
        ({"calculate_kv_scales": True}, "calculate_kv_scales: expected False, got True"),
        ({"cpu_offload_gb": 1}, "cpu_offload_gb: expected 0, got 1.0"),
        ({"block_size": 512}, "block_size: expected at most 256, got 512"),
        ({"runner": "pooling"}, "runner: expected generate, got pooling"),
        ({"enable_prompt_embeds": True}, "enable_prompt_embeds: expected False, got True"),
        ({"logits_processors": ["a:B"]}, "logits_processors: expected none, got custom ones"),
    ],
)
def test_a_way_to_serve(folder_of, options, expected):
    with pytest.raises(pyxla.PyxlaError) as caught:
        config(folder_of("llama"), **options)
    assert caught.value.message == f"vllm: {expected}"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}},
            "quantization: expected weights that are not quantised, got fp8",
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": WEIGHTS}}},
            "quantization: expected weights that are not quantised, got compressed-tensors",
        ),
        (
            {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "num_heads": 8, "head_dim": 16},
            "model: expected attention in every layer, got Mamba2ForCausalLM, with layers that keep another state",
        ),
        (
            {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"},
            "attention: expected keys and values in heads, got DeepseekV2ForCausalLM, latent attention (MLA)",
        ),
        (
            {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"},
            "model: expected a text model, got LlavaForConditionalGeneration, a multimodal model",
        ),
    ],
)
def test_a_model(folder_of, tmp_path, changes, expected):
    """Each from a checkpoint's config.json."""
    import json
    import shutil

    folder = shutil.copytree(folder_of("llama"), tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(pyxla.PyxlaError) as caught:
        config(folder, dtype="bfloat16" if "quantization_config" in changes else "float32")
    assert caught.value.message == f"vllm: {expected}"


def test_experts_on_several_devices(folder_of):
    with pytest.raises(pyxla.PyxlaError, match="vllm: enable_expert_parallel: expected False, got True"):
        config(folder_of("mixtral"), enable_expert_parallel=True)


def test_a_head_size(folder_of):
    from vllm.platforms import current_platform

    with pytest.raises(pyxla.PyxlaError, match="vllm: head size: expected a multiple of 8, at most 256, got 12"):
        current_platform.get_attn_backend_cls(None, 12, None, "auto", 16, False, False, False)


@pytest.fixture(scope="module")
def llm(folder_of):
    return engine(folder_of("llama"), "direct")


def test_a_request(llm):
    """A ValueError, which vLLM's server answers with HTTP 400; the next request is served.

    vLLM itself refuses the other parameters that are not there.
    """
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": [5, 6, 7]}
    with pytest.raises(ValueError) as caught:
        llm.generate([prompt], SamplingParams(extra_args={"a": 1}), use_tqdm=False)
    assert caught.value.message == "vllm: extra_args: expected None, got {'a': 1}"
    # vLLM takes what the tokenizer has; without one the engine would fail on it, or answer for another token.
    with pytest.raises(ValueError) as caught:
        llm.generate([{"prompt_token_ids": [5, VOCABULARY, 7]}], SamplingParams(), use_tqdm=False)
    assert (
        caught.value.message == f"vllm: prompt: expected tokens below {VOCABULARY}, as the model has, got {VOCABULARY}"
    )
    (output,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 2
