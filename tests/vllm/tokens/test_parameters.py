"""What a request asks of its tokens, through vLLM's engine, in steps that requests of all kinds share."""

import re

import pytest
import torch

import pyxla
from pyxla.vllm.releases import samples_apart
from tests.vllm.engine import AHEAD, BLOCK_BYTES, MARKS, MODES, engine, prompts_of, runner_of
from tests.vllm.models import logits_of

pytestmark = MARKS
COUNT = 8
A = 35  # the letter, in the tokenizer of tests/vllm/models.py
PROMPTS = prompts_of(5, 40, 17, 3, 60, 9)
# Of each kind of graph that samples, and none; more than the 4 requests of a step.
REQUESTS = [
    {},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.0, "seed": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.3, "logprobs": 5},
    {"temperature": 1.5, "seed": 5, "logprobs": 3},
    {"logit_bias": {7: 3.0}, "min_tokens": 4, "stop_token_ids": list(range(100))},
]


@pytest.fixture(scope="module", params=[(mode, ahead) for mode in MODES for ahead in (False, True)], ids=str)
def llm(folder_of, request):
    mode, ahead = request.param
    options = AHEAD if ahead else {}
    return engine(folder_of("llama"), mode, **options)


def ask(llm, prompts, requests):
    """The completion of each prompt."""
    from vllm import SamplingParams

    params = [SamplingParams(**({"temperature": 0, "max_tokens": COUNT} | request)) for request in requests]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def tokens_of(completions):
    return [list(completion.token_ids) for completion in completions]


def test_a_request_gets_the_same_tokens_alone_and_among_others(llm):
    with pyxla.assert_no_recompilation():
        together = tokens_of(ask(llm, PROMPTS, REQUESTS))
        for prompt, request, tokens in zip(PROMPTS, REQUESTS, together, strict=True):
            assert tokens_of(ask(llm, [prompt], [request])) == [tokens]
    assert len(together[1]) == COUNT and len(together[5]) >= 4


def test_a_preempted_request_goes_on_as_before(llm, folder_of, preempted):
    """Requests of 70 to 130 tokens in 20 blocks of 16, 8 at a time."""
    requests = [request | {"max_tokens": 40} for request in (*REQUESTS[:5], *REQUESTS[1:5])]
    prompts = prompts_of(*(90, 60, 70, 64, 30, 50, 80, 33, 90))
    mode = "direct" if runner_of(llm).direct else "compiled"
    ahead = llm.llm_engine.vllm_config.scheduler_config.async_scheduling
    options = AHEAD if ahead else {}
    small = engine(folder_of("llama"), mode, max_num_seqs=8, kv_cache_memory_bytes=20 * BLOCK_BYTES, **options)
    together = tokens_of(ask(small, prompts, requests))
    assert len(preempted) > 3
    for prompt, request, tokens in zip(prompts, requests, together, strict=True):
        assert tokens_of(ask(llm, [prompt], [request])) == [tokens]


def test_penalties_by_definition(llm, folder_of):
    """Each token is the likeliest one after the penalties, of logits that transformers computes in one go."""
    (found,) = ask(llm, PROMPTS[:1], REQUESTS[3:4])
    logits = logits_of(folder_of("llama"), PROMPTS[0] + list(found.token_ids))
    for number, token in enumerate(found.token_ids):
        output = list(found.token_ids[:number])
        row = logits[len(PROMPTS[0]) - 1 + number].clone()
        seen = sorted({*PROMPTS[0], *output})
        row[seen] = torch.where(row[seen] > 0, row[seen] / 1.3, row[seen] * 1.3)
        for past in set(output):
            row[past] -= 1.5 + 0.5 * output.count(past)
        assert row.argmax() == token


def test_logprobs_are_those_of_transformers(llm, folder_of):
    prompt = PROMPTS[1]
    (found,) = ask(llm, [prompt], [{"logprobs": 4}])
    logits = logits_of(folder_of("llama"), prompt + list(found.token_ids))
    assert len(found.logprobs) == COUNT
    for number, (token, entries) in enumerate(zip(found.token_ids, found.logprobs, strict=True)):
        expected = logits[len(prompt) - 1 + number].log_softmax(0)
        assert set(entries) == set(expected.topk(4).indices.tolist()) | {token}
        for chosen, entry in entries.items():
            assert entry.logprob == pytest.approx(expected[chosen].item(), abs=1e-3)
        assert entries[token].rank == 1


def test_prompt_logprobs_are_those_of_transformers(llm, folder_of):
    """Of prompts that steps of 32 tokens read in parts, some twice: the second reading must not take the cache's."""
    from vllm import SamplingParams

    prompts = [PROMPTS[number] for number in (1, 4, 3, 1)]
    wanted = [{"prompt_logprobs": number} for number in (2, 0, 1)] + [{}]
    params = [SamplingParams(temperature=0, max_tokens=2, **each) for each in wanted]
    with pyxla.assert_no_recompilation():
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    assert outputs[3].prompt_logprobs is None
    for output, prompt, num in zip(outputs, prompts, (2, 0, 1), strict=False):
        logits = logits_of(folder_of("llama"), prompt).log_softmax(1)
        first, *others = output.prompt_logprobs
        assert first is None and len(others) == len(prompt) - 1
        for token, entries, expected in zip(prompt[1:], others, logits, strict=False):
            assert set(entries) == set(expected.topk(num).indices.tolist()) | {token}
            assert entries[token].rank == (expected >= expected[token]).sum()
            for chosen, entry in entries.items():
                assert entry.logprob == pytest.approx(expected[chosen].item(), abs=1e-3)


def test_tokens_that_are_not_allowed(llm):
    allowed = [11, 12, 13]
    completions = ask(
        llm,
        PROMPTS[:3],
        [
            {"temperature": 1.0, "allowed_token_ids": allowed},
            {"logit_bias": {A: 1000.0}},
            {"logit_bias": {A: 1000.0, 201: 900.0}, "bad_words": [llm.get_tokenizer().decode([A])]},
        ],
    )
    found = tokens_of(completions)
    assert set(found[0]) <= set(allowed)
    assert set(found[1]) == {A}
    assert A not in found[2]


def test_bad_words_of_two_tokens(llm):
    """The second one is forbidden only after the first, which the host must have read."""
    words = [llm.get_tokenizer().decode([A, A])]
    (found,) = tokens_of(ask(llm, PROMPTS[:1], [{"logit_bias": {A: 1000.0, A + 1: 900.0}, "bad_words": words}]))
    assert found == [A, A + 1] * (COUNT // 2)


def test_each_draw_has_its_own_random_numbers(llm):
    """Nearly all tokens are as likely, so only the random numbers tell one draw from the next."""
    requests = [{"temperature": 1000.0, "seed": seed} for seed in (1, 2)]
    one, other = tokens_of(ask(llm, PROMPTS[:2], requests))
    assert len(set(one)) > COUNT // 2 and len(set(other)) > COUNT // 2 and one != other


def test_min_tokens(llm):
    """A token that stops the request comes as soon as it may, not before."""
    stops = {"stop_token_ids": list(range(288))}
    lengths = [len(tokens) for tokens in tokens_of(ask(llm, PROMPTS[:2], [stops, stops | {"logit_bias": {A: 50.0}}]))]
    assert lengths == [1, 1]
    request = {"stop_token_ids": [A], "logit_bias": {A: 1000.0}, "min_tokens": 3}
    (found,) = tokens_of(ask(llm, PROMPTS[:1], [request]))
    assert len(found) == 4 and A not in found[:3] and found[3] == A


def test_a_grammar(llm):
    """A digit, then only what a regular expression takes; not ahead of the host with vLLM 0.11.0."""
    from vllm.sampling_params import StructuredOutputsParams

    request = {"structured_outputs": StructuredOutputsParams(regex="[0-9]{3}x"), "temperature": 1.0, "max_tokens": 20}
    if llm.llm_engine.vllm_config.scheduler_config.async_scheduling and not samples_apart():
        with pytest.raises(ValueError, match="vllm: structured_outputs: expected none with async scheduling, got some"):
            ask(llm, PROMPTS[:1], [request])
        return
    first, other = ask(llm, PROMPTS[:2], [request, {}])
    assert re.fullmatch("[0-9]{3}x", first.text)
    assert tokens_of([other]) == tokens_of(ask(llm, PROMPTS[1:2], [{}]))
