"""Prompts that examples/llama refuses, buckets, and how tokens are drawn."""

import re

import pytest
import torch
import torch_xla

from examples.llama.config import CONFIGS
from examples.llama.generate import generate
from examples.llama.runner import RANDOM_LIMIT, ModelRunner, bucket, choose
from examples.llama.weights import load, random_weights
from pyxla import ArgumentError
from pyxla.nn import in_mode

TINY = CONFIGS["tiny"]


@pytest.fixture(scope="module")
def model():
    return load(TINY, random_weights(TINY, 0, torch.float32), torch.float32, torch_xla.device())


@pytest.mark.parametrize(
    ("prompts", "max_tokens", "message"),
    [
        ([], 1, "llama: prompt: expected at least one, got none"),
        ([[1], []], 1, "llama: prompt: expected at least 1 token, got 0"),
        ([[1, 256]], 1, "llama: prompt: expected tokens in [0, 256), got 256"),
        ([[1]], 0, "llama: max_tokens: expected a count of 1 or more, got 0"),
        ([[1] * 30], 11, "llama: prompt: expected at most 40 tokens with max_tokens, got 30 and 11"),
        ([[1]] * 3, 1, "PagedKVCache: batch: expected at most 2 sequences, got 3"),
    ],
)
def test_prompts_that_cannot_be_continued(prompts, max_tokens, message, model):
    runner = ModelRunner(model, max_seqs=2, max_length=40)
    with pytest.raises(ArgumentError, match=re.escape(message)):
        generate(runner, prompts, max_tokens)
    assert runner.cache.free_blocks == runner.cache.num_blocks
    # The longest that fits.
    assert len(generate(runner, [[1] * 30], 10)[0]) == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 4096}, "llama: max_length: expected a count in [1, 1024], got 4096"),
        ({"max_seqs": 0}, "PagedKVCache: num_blocks: expected a count of 1 or more, got 0"),
        ({"temperature": -1.0}, "llama: temperature: expected a number of 0 or more, got -1.0"),
        ({"temperature": float("nan")}, "llama: temperature: expected a number of 0 or more, got nan"),
        ({"mode": "eager"}, "attention_mode: mode: expected direct or compile, got eager"),
    ],
)
def test_wrong_sizes(changes, message, model):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        ModelRunner(model, **{"max_seqs": 2, "max_length": 40} | changes)


def test_buckets_are_powers_of_two():
    assert [bucket(tokens) for tokens in (1, 8, 9, 64, 65, 1000)] == [8, 8, 16, 64, 128, 1024]


@pytest.mark.parametrize("mode", ["direct", "compile"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_have_the_probabilities(mode, temperature):
    """Evenly spread numbers instead of random ones: each token's count is its expected count, within one."""
    torch._dynamo.reset()
    device, rows = torch_xla.device(), 4000
    logits = torch.randn(100, generator=torch.Generator().manual_seed(3)) * 2
    numbers = ((torch.arange(rows) + 0.5) / rows * RANDOM_LIMIT).to(torch.int32)
    got = in_mode(choose, mode)(logits.expand(rows, -1).to(device), temperature, numbers.to(device))
    assert got.dtype == torch.int32
    # A draw is among 64 tokens.
    values, ids = logits.double().topk(64)
    expected = torch.zeros(100, dtype=torch.float64).index_copy(0, ids, rows * (values / temperature).softmax(0))
    assert (torch.bincount(got.cpu(), minlength=100) - expected).abs().max() <= 1.01


def test_draws_at_temperature_0_and_at_the_edges():
    """The likeliest token whatever the number; the largest number stays within the candidates."""
    logits, numbers = torch.tensor([[1.0, 3.0, 2.0]] * 2), torch.tensor([0, RANDOM_LIMIT - 1], dtype=torch.int32)
    assert choose(logits, 0.0, numbers).tolist() == [1, 1]
    assert choose(logits, 1.0, numbers).tolist() == [1, 0]
    # Of 41 equal probabilities the sum in float32 is not above the largest number.
    assert choose(torch.zeros(1, 41), 1.0, numbers[1:]).tolist()[0] in range(41)


def test_draws_go_by_the_seed_and_equal_prompts_differ(model):
    def drawn(seed):
        return generate(ModelRunner(model, max_seqs=2, max_length=40, temperature=0.8, seed=seed), [[1], [1]], 20)

    first, second = drawn(0)
    assert first != second
    assert drawn(0) == [first, second] != drawn(1)
