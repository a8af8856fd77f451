"""Which fields of vLLM's SamplingParams are honoured, and by whom; the others are refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyxla.op.arguments import Check

check = Check("vllm")

# The device does what these say.
BY_SAMPLER = {
    *("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("logit_bias", "allowed_token_ids", "bad_words", "_bad_words_token_ids", "min_tokens", "_all_stop_token_ids"),
    *("logprobs", "prompt_logprobs"),
}
# vLLM's engine does, before or after the model: it copies requests, cuts prompts, stops, detokenizes, makes grammars.
BY_ENGINE = {
    *("n", "_real_n", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "detokenize", "skip_special_tokens"),
    *("spaces_between_special_tokens", "include_stop_str_in_output", "truncate_prompt_tokens", "output_kind"),
    *("output_text_buffer_length", "structured_outputs", "guided_decoding", "skip_reading_prefix_cache"),
}
REFUSED = {"best_of", "logits_processors", "extra_args"}


def check_parameters(params: Any, vocab_size: int, max_logprobs: int, has_tokenizer: bool = True) -> None:
    """Raises for parameters that would otherwise be ignored.

    Args:
        params: vLLM's SamplingParams.
        vocab_size: number of logits of the model.
        max_logprobs: of vLLM's ModelConfig; -1: the vocabulary.
        has_tokenizer: whether vLLM turns `bad_words` into tokens.

    Raises:
        ArgumentError: a field is not supported, or has a value that the model does not have.
    """
    best_of = params.best_of
    check.that(best_of in (None, 1), "best_of", "None", best_of, "ask for n outputs and choose among them")
    check.that(not params.logits_processors, "logits_processors", "None", "functions")
    check.that(not params.extra_args, "extra_args", "None", params.extra_args)
    words = has_tokenizer or not params.bad_words
    check.that(words, "bad_words", "None without a tokenizer", params.bad_words, "start vLLM with its tokenizer")
    _check_tokens("logit_bias", params.logit_bias or (), vocab_size)
    allowed = params.allowed_token_ids
    check.that(allowed is None or len(allowed) > 0, "allowed_token_ids", "at least one token", "none")
    _check_tokens("allowed_token_ids", allowed or (), vocab_size)
    most = vocab_size if max_logprobs == -1 else max_logprobs
    for name in ("logprobs", "prompt_logprobs"):
        wanted = getattr(params, name)
        count = vocab_size if wanted == -1 else wanted or 0
        check.that(count <= most, name, f"at most {most}", count, f"start vLLM with --max-logprobs {count}")
    if params.prompt_logprobs is not None:
        # vLLM 0.11.0 has no such field. What a cache has of a prompt has no log probabilities.
        reads = getattr(params, "skip_reading_prefix_cache", None) is False
        check.that(not reads, "skip_reading_prefix_cache", "True or None with prompt_logprobs", False)
    _check_known(params)


def _check_tokens(name: str, tokens: Iterable[int], vocab_size: int) -> None:
    outside = [token for token in tokens if not 0 <= token < vocab_size]
    check.that(not outside, name, f"tokens in [0, {vocab_size})", outside)


def _check_known(params: Any) -> None:
    """Raises for a field that is in none of the sets, unless it has its default."""
    new = set(params.__struct_fields__) - BY_SAMPLER - BY_ENGINE - REFUSED
    default = type(params)() if new else params
    for name in sorted(new):
        value = getattr(params, name)
        check.that(value == getattr(default, name), name, "a field that pyxla knows", value)
