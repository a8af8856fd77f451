"""What vLLM can ask for and this platform does not have: an error with its name, never silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyxla.errors import PyxlaError, mismatch
from pyxla.op.arguments import Check
from pyxla.vllm.releases import samples_apart
from pyxla.vllm.sampling.parameters import check_parameters

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams

check = Check("vllm")
# vLLM's names of a float8_e4m3fn cache.
FLOAT8 = ("fp8", "fp8_e4m3")
# A hint where a model cannot be split.
WHOLE_MODELS = "--data-parallel-size: a whole model on each device"


def refuse_unless(there: bool, what: str, expected: object, got: object, hint: str | None = None) -> None:
    """Raises unless something that vLLM asks for is there.

    Args:
        there: whether it is.
        what, expected, got: for the message.
        hint: what to do instead.

    Raises:
        PyxlaError: it is not.
    """
    if not there:
        raise PyxlaError(mismatch("vllm", what, expected, got), hint)


def check_config(config: VllmConfig) -> None:
    """Raises for a model, or a way to serve it, that is not there.

    Args:
        config: vLLM's, before a worker starts.

    Raises:
        PyxlaError: the first thing that is not there.
    """
    parallel, cache, model = config.parallel_config, config.cache_config, config.model_config
    pipeline = parallel.pipeline_parallel_size
    refuse_unless(pipeline == 1, "pipeline_parallel_size", 1, pipeline, "--tensor-parallel-size")
    backend = parallel.data_parallel_backend
    refuse_unless(backend == "mp", "data_parallel_backend", "mp", backend)
    refuse_unless(
        not parallel.enable_expert_parallel, "enable_expert_parallel", "False", "True", "a device has all experts"
    )
    heads, size = model.get_total_num_kv_heads() if model else 0, parallel.tensor_parallel_size
    expected = f"a divisor of {heads}, the heads of keys and values"
    refuse_unless(heads % size == 0, "tensor_parallel_size", expected, size, WHOLE_MODELS)
    refuse_unless(config.lora_config is None, "LoRA", "none", "adapters", "merge the adapter into the model's weights")
    refuse_unless(config.speculative_config is None, "speculative decoding", "none", "a draft")
    refuse_unless(config.kv_transfer_config is None, "KV transfer", "none", "a connector")
    caches = ("auto", *FLOAT8)
    refuse_unless(cache.cache_dtype in caches, "kv_cache_dtype", "auto, fp8 or fp8_e4m3", cache.cache_dtype)
    hint = "the scales are the checkpoint's, or 1"
    refuse_unless(not cache.calculate_kv_scales, "calculate_kv_scales", "False", "True", hint)
    refuse_unless(not cache.cpu_offload_gb, "cpu_offload_gb", 0, cache.cpu_offload_gb, "all weights are on the device")
    refuse_unless(cache.block_size <= 256, "block_size", "at most 256", cache.block_size)
    if model is not None:
        for what, expected, got, hint in _absent(model):
            refuse_unless(False, what, expected, got, hint)


def _absent(model: Any) -> Iterator[tuple[str, object, object, str | None]]:
    """What a model has that is not there: what, expected, got and hint."""
    architecture = model.architecture
    if model.runner_type != "generate":
        yield "runner", "generate", model.runner_type, None
    if model.is_encoder_decoder:
        yield "model", "a decoder", f"{architecture}, an encoder and decoder", None
    if model.is_multimodal_model:
        yield "model", "a text model", f"{architecture}, a multimodal model", None
    if model.is_hybrid or model.is_attention_free:
        yield "model", "attention in every layer", f"{architecture}, with layers that keep another state", None
    if model.use_mla:
        yield "attention", "keys and values in heads", f"{architecture}, latent attention (MLA)", None
    if model.quantization is not None and not _quantises_the_cache_alone(model):
        yield "quantization", "weights that are not quantised", model.quantization, "serve the checkpoint in bfloat16"
    if model.enable_prompt_embeds:
        yield "enable_prompt_embeds", "False", "True", "pass tokens"
    if model.enable_sleep_mode:
        yield "enable_sleep_mode", "False", "True", None
    if model.logits_processors:
        yield "logits_processors", "none", "custom ones", None


def _quantises_the_cache_alone(model: Any) -> bool:
    """Whether a checkpoint of compressed-tensors has scales of keys and values, and weights as they were."""
    config = getattr(model.hf_config, "quantization_config", None) or {}
    weights = any(config.get(name) for name in ("config_groups", "sparsity_config", "transform_config"))
    return model.quantization == "compressed-tensors" and not weights


def check_request(params: SamplingParams, prompt: Sequence[int], config: VllmConfig) -> None:
    """Raises for parameters of a request that are not there; vLLM's server answers with HTTP 400.

    Args:
        params: of the request.
        prompt: its tokens.
        config: vLLM's.

    Raises:
        ArgumentError: the first such parameter, or a token that the model does not have.
    """
    model, ahead = config.model_config, config.scheduler_config.async_scheduling
    vocab_size, largest = model.get_vocab_size(), max(prompt, default=0)
    # vLLM takes all tokens of the tokenizer, which may have more than the model.
    check.that(largest < vocab_size, "prompt", f"tokens below {vocab_size}, as the model has", largest)
    check_parameters(params, vocab_size, model.max_logprobs, not model.skip_tokenizer_init)
    if ahead and not samples_apart():
        # vLLM makes the mask before the token of the step before is there.
        hint = "start vLLM without --async-scheduling"
        check.that(params.structured_outputs is None, "structured_outputs", "none with async scheduling", "some", hint)
