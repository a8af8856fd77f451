"""Each field of vLLM's SamplingParams is honoured or refused by name."""

from importlib.util import find_spec

import pytest

from pyxla import ArgumentError
from pyxla.vllm.releases import release
from pyxla.vllm.sampling.parameters import BY_ENGINE, BY_SAMPLER, REFUSED, check_parameters
from tests.vllm.sampling.parameters import Parameters

FIELDS = set(Parameters.__dataclass_fields__)
# Field -> a test of this folder that shows that the sampler honours it.
SHOWN_BY = {
    **dict.fromkeys(["temperature", "top_k", "top_p", "min_p", "logit_bias"], "test_processed_logits"),
    **dict.fromkeys(["allowed_token_ids", "_bad_words_token_ids", "min_tokens"], "test_processed_logits"),
    **dict.fromkeys(
        ["presence_penalty", "frequency_penalty", "repetition_penalty"], "test_penalties_count_on_the_device"
    ),
    "_all_stop_token_ids": "test_forbidden_tokens_come_and_go",
    "bad_words": "test_forbidden_tokens_come_and_go",
    "seed": "test_a_seed_decides_the_tokens",
    "logprobs": "test_raw_logprobs_and_logits",
    "prompt_logprobs": "test_prompts_in_chunks",
}


def test_each_field_has_one_place():
    assert BY_SAMPLER | BY_ENGINE | REFUSED == FIELDS
    assert len(BY_SAMPLER) + len(BY_ENGINE) + len(REFUSED) == len(FIELDS)


def test_what_the_sampler_honours_is_tested():
    from tests.vllm.sampling import test_logprobs, test_sample, test_sampler

    assert SHOWN_BY.keys() == BY_SAMPLER
    tests = {name for module in (test_logprobs, test_sample, test_sampler) for name in vars(module)}
    assert set(SHOWN_BY.values()) <= tests


@pytest.mark.skipif(not find_spec("vllm"), reason="vLLM is not installed: requirements/vllm.in")
def test_the_fields_are_those_of_vllm():
    from vllm import SamplingParams

    later = {"skip_reading_prefix_cache"} if release() == "0.11.0" else set()
    assert set(SamplingParams.__struct_fields__) == FIELDS - later
    ours, theirs = Parameters(), SamplingParams()
    # Of these vLLM makes lists and an enum.
    same = FIELDS - later - {"stop", "stop_token_ids", "bad_words", "output_kind"}
    assert {name: getattr(ours, name) for name in same} == {name: getattr(theirs, name) for name in same}
    check_parameters(theirs, 100, 20)
    with pytest.raises(ArgumentError, match="vllm: extra_args"):
        check_parameters(SamplingParams(extra_args={"a": 1}), 100, 20)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"best_of": 3}, "vllm: best_of: expected None, got 3"),
        ({"logits_processors": [abs]}, "vllm: logits_processors: expected None, got functions"),
        ({"extra_args": {"a": 1}}, "vllm: extra_args: expected None, got {'a': 1}"),
        ({"logit_bias": {4: 1.0, 100: 1.0}}, r"vllm: logit_bias: expected tokens in \[0, 100\), got \[100\]"),
        ({"allowed_token_ids": [-1, 5]}, r"vllm: allowed_token_ids: expected tokens in \[0, 100\), got \[-1\]"),
        ({"allowed_token_ids": []}, "vllm: allowed_token_ids: expected at least one token, got none"),
        ({"logprobs": 21}, "vllm: logprobs: expected at most 20, got 21"),
        ({"prompt_logprobs": -1}, "vllm: prompt_logprobs: expected at most 20, got 100"),
        (
            {"prompt_logprobs": 0, "skip_reading_prefix_cache": False},
            "vllm: skip_reading_prefix_cache: expected True or None with prompt_logprobs, got False",
        ),
    ],
)
def test_refused_by_name(fields, message):
    with pytest.raises(ArgumentError, match=message):
        check_parameters(Parameters(**fields), 100, 20)


def test_bad_words_need_a_tokenizer():
    params = Parameters(bad_words=["no"])
    check_parameters(params, 100, 20)
    with pytest.raises(ArgumentError, match=r"vllm: bad_words: expected None without a tokenizer, got \['no'\]"):
        check_parameters(params, 100, 20, has_tokenizer=False)


def test_all_logprobs_where_the_server_allows_them():
    check_parameters(Parameters(logprobs=-1, prompt_logprobs=100, skip_reading_prefix_cache=True), 100, -1)
    check_parameters(Parameters(best_of=1, logprobs=20), 100, 20)


def test_a_field_of_a_later_vllm():
    class Later(Parameters):
        watermark = None
        __struct_fields__ = (*Parameters.__dataclass_fields__, "watermark")

    params = Later()
    check_parameters(params, 100, 20)
    params.watermark = "on"
    with pytest.raises(ArgumentError, match=r"vllm: watermark: expected a field that pyxla knows, got on"):
        check_parameters(params, 100, 20)
