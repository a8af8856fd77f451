"""`sample` against the definition in float64: the logits that it draws from, and how often it draws each token."""

import itertools

import numpy as np
import pytest
import torch
import torch_xla
from hypothesis import given
from hypothesis import strategies as st

import pyxla
from pyxla.vllm.sampling import VARIANTS, Level, Sampler, Variant
from pyxla.vllm.sampling.rows import RECORD
from tests.vllm.sampling.parameters import Parameters
from tests.vllm.sampling.reference import adjusted, kept, margin, probabilities
from tests.vllm.sampling.steps import MODES, run, words

# 32 tokens: few enough to see all; 3 rows and a fourth that no request has. As in test_sampler.py, to share graphs.
VOCAB, ROWS, SLOTS = 32, 4, 8
TOKENS = st.integers(0, VOCAB - 1)
HALVES = st.integers(-12, 12).map(lambda n: n / 2)
PARAMETERS = st.builds(
    Parameters,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 3, 40]),
    top_p=st.sampled_from([1.0, 0.87, 0.31]),
    min_p=st.sampled_from([0.0, 0.043]),
    presence_penalty=st.sampled_from([0.0, 0.7, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    logit_bias=st.none() | st.dictionaries(TOKENS, st.sampled_from([-100.0, -1.5, 2.25]), min_size=1, max_size=4),
    # Token 0 stays allowed everywhere, so that there is one.
    allowed_token_ids=st.none() | st.sets(TOKENS, min_size=8).map(lambda s: [0, *s]),
    _bad_words_token_ids=st.none() | st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=3),
    min_tokens=st.sampled_from([0, 3]),
    _all_stop_token_ids=st.sets(st.integers(1, VOCAB + 5), max_size=3),
)


def one_row_each(requests, grammars, logits, mode, logprobs_mode):
    """Sampled of one step; `requests` are (params, prompt, output)."""
    sampler = Sampler(VOCAB, SLOTS, torch_xla.device(), mode=mode)
    for name, (params, prompt, output) in enumerate(requests):
        params.logprobs = 1
        sampler.add(str(name), params, prompt, output)
    names = [str(name) for name in range(len(requests))]
    grammar = {
        name: words(allowed, VOCAB) for name, allowed in zip(names, grammars, strict=True) if allowed is not None
    }
    prepared = sampler.prepare(names, ROWS, [len(output) for *_, output in requests], [True] * len(names), grammar)
    return run(sampler, prepared, logits, mode, VOCAB, logprobs_mode)


def clear(changed, params):
    """Whether float32 finds the same tokens: no two logits that differ by rounding alone, no sum at a limit."""
    gaps = np.diff(np.sort(changed[np.isfinite(changed)]))
    filters = params.temperature > 0 and (params.top_p < 1 or params.min_p > 0)
    return (gaps > 1e-5).all() and not (filters and margin(changed, params) < 1e-4)


@given(
    requests=st.lists(
        st.tuples(PARAMETERS, st.lists(TOKENS, max_size=6), st.lists(st.integers(0, 4), max_size=5)),
        min_size=3,
        max_size=3,
    ),
    grammars=st.lists(st.none() | st.sets(TOKENS, min_size=8).map(lambda s: {0, *s}), min_size=3, max_size=3),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_processed_logits(requests, grammars, seed, dtype):
    logits = 3 * torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(seed)).to(dtype)
    found = one_row_each(requests, grammars, logits, "direct", "processed_logits")
    for row, (params, prompt, output), grammar, ids, values, token in zip(
        logits.double().numpy(), requests, grammars, *found.logprobs[:2], found.tokens, strict=False
    ):
        changed = adjusted(row, params, prompt, output, grammar)
        if not clear(changed, params):
            continue
        stays = kept(changed, params) if params.temperature else np.isfinite(changed)
        got = np.empty(VOCAB)
        got[ids[1:]] = values[1:]
        expected = np.where(stays, changed / (params.temperature or 1), -np.inf)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
        assert ids[0] == token and stays[token]
        assert params.temperature or token == changed.argmax()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", Level)
def test_draws_have_the_distribution(mode, level):
    """4096 rows that differ in their seeds alone; chi-square with fewer than 32 degrees of freedom, p = 1e-4 at 71.

    A weight of 0 is never drawn.
    """
    params = {
        Level.GREEDY: Parameters(temperature=0.0),
        Level.RANDOM: Parameters(temperature=1.3, min_p=0.02),
        Level.FILTERED: Parameters(temperature=0.8, top_k=20, top_p=0.95),
        Level.ADJUSTED: Parameters(top_k=25, presence_penalty=1.0, logit_bias={3: 2.0, 30: -50.0}),
    }[level]
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))
    count = 4096
    sampler = Sampler(VOCAB, 1, torch_xla.device(), mode=mode)
    sampler.add("a", params, [1, 2], [2, 5])
    prepared = sampler.prepare(["a"], count, [2], [True])
    prepared.packed[1:] = prepared.packed[0]
    prepared.packed[:, RECORD.names.index("seed_low")] = torch.arange(count, dtype=torch.int32)
    assert prepared.variant == Variant(level, False)
    drawn = np.bincount(run(sampler, prepared, logits.expand(count, -1), mode).tokens, minlength=VOCAB)
    expected = count * probabilities(adjusted(logits.numpy(), params, [1, 2], [2, 5]), params)
    assert drawn[expected == 0].sum() == 0
    some = expected > 0
    assert ((drawn - expected)[some] ** 2 / expected[some]).sum() < 71


def test_draws_of_a_real_vocabulary():
    """128,256 tokens, 251 blocks: 512 draws of the even tokens, all as likely, so halves and 16ths are too."""
    vocab_size, count = 128256, 64
    logits = torch.full((vocab_size,), -torch.inf)
    logits[::2] = 7.0
    sampler = Sampler(vocab_size, count, torch_xla.device(), seed=5, mode="direct")
    names = [str(number) for number in range(count)]
    for name in names:
        sampler.add(name, Parameters(), [], [])
    drawn = []
    for position in range(8):
        prepared = sampler.prepare(names, count, [position] * count, [True] * count)
        drawn += run(sampler, prepared, logits.expand(count, -1)).tokens.tolist()
    assert not (np.array(drawn) % 2).any() and len(set(drawn)) > 500
    for classes in (2, 16):  # p = 1e-4 at 15 with 1 degree of freedom, 44 with 15
        expected = len(drawn) / classes
        counts = np.bincount(np.array(drawn) * classes // vocab_size, minlength=classes)
        assert ((counts - expected) ** 2 / expected).sum() < {2: 15, 16: 44}[classes]


def test_a_bias_tells_equal_bfloat16_logits_apart():
    """The biased logit has bits that no bfloat16 has; top-k must look at them."""
    logits = torch.zeros(ROWS, VOCAB, dtype=torch.bfloat16)
    logits[0, [3, 8]] = 2.0
    request = Parameters(top_k=1, logit_bias={8: 0.0005}), [], []
    found = one_row_each([request], [None], logits, "direct", "processed_logits").logprobs
    assert found.token_ids[0, :2].tolist() == [8, 8] and found.values[0, 2:].isneginf().all()


def test_an_unlikely_token_is_not_a_forbidden_one():
    """exp(-100 / 0.3) is 0 in float32; the token's logit stays finite all the same."""
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(8))
    request = Parameters(temperature=0.3, logit_bias={5: -100.0}, allowed_token_ids=list(range(20))), [], []
    found = one_row_each([request], [None], logits, "direct", "processed_logits").logprobs
    values = dict(zip(found.token_ids[0, 1:].tolist(), found.values[0, 1:].tolist(), strict=True))
    assert values[5] == pytest.approx((logits[0, 5].item() - 100) / 0.3)
    assert sorted(token for token, value in values.items() if value == -np.inf) == list(range(20, VOCAB))


@pytest.mark.parametrize("mode", MODES)
def test_raw_logprobs_and_logits(mode):
    """Of the logits before bias and penalties; a grammar comes first. The draw may be a token that they rank low."""
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(6))
    requests = [(Parameters(temperature=0.0, logit_bias={9: 100.0}), [], []) for _ in range(2)]
    grammar = [7, 9, 31]
    masked = torch.full((VOCAB,), -torch.inf)
    masked[grammar] = logits[1, grammar]
    for logprobs_mode in ("raw_logits", "raw_logprobs"):
        found = one_row_each(requests, [None, grammar], logits, mode, logprobs_mode)
        assert found.tokens[:2].tolist() == [9, 9]
        for row, expected in enumerate([logits[0], masked]):
            values = expected if logprobs_mode == "raw_logits" else expected.log_softmax(0)
            assert found.logprobs.ranks[row] == (expected >= expected[9]).sum()
            got = torch.empty(VOCAB)
            got[found.logprobs.token_ids[row, 1:].long()] = found.logprobs.values[row, 1:]
            torch.testing.assert_close(got, values)
            torch.testing.assert_close(found.logprobs.values[row, 0], values[9])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_first_of_equal_tokens_on_the_device_alone(mode, variant):
    """A blank step takes the first of the likeliest tokens, and nothing goes by way of the host."""
    logits = torch.zeros(ROWS, VOCAB)
    logits[0, [4, 9]], logits[1, 31], logits[3, 2] = 2.0, 1.0, -1.0
    sampler = Sampler(VOCAB, SLOTS, torch_xla.device(), mode=mode)
    with pyxla.assert_no_fallback():
        found = run(sampler, sampler.blank(ROWS, variant), logits.to(torch.bfloat16), mode)
    assert found.tokens.tolist() == [4, 31, 0, 0]
    assert found.tokens.dtype == torch.int32
    assert (found.logprobs is not None) == variant.logprobs


def test_every_level_draws_the_same():
    """A step in a higher level because of other rows draws the same tokens."""
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(7))
    drawn = []
    for level, logprobs in itertools.product(list(Level)[1:], [False, True]):
        sampler = Sampler(VOCAB, SLOTS, torch_xla.device(), mode="direct")
        for name in "ab":
            sampler.add(name, Parameters(seed=ord(name), temperature=0.7, min_p=0.01), [], [])
        prepared = sampler.prepare("ab", ROWS, [3, 4], [True] * 2)
        drawn.append(run(sampler, prepared._replace(variant=Variant(level, logprobs)), logits).tokens.tolist())
    assert drawn == [drawn[0]] * 6
