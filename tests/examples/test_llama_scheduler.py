"""The scheduler of examples/llama on a device in plain Python, with one step in flight; and how tokens are drawn."""

import dataclasses
import random

import pytest
import torch
import torch_xla
from hypothesis import given
from hypothesis import strategies as st

from examples.llama.sampling import Draws, draw
from examples.llama.scheduler import Request, Scheduler
from pyxla import ArgumentError
from pyxla.nn import BlockTables
from pyxla.nn.mode import in_mode

SIZE, VOCABULARY = 4, 50


class Device:
    """Computes a token from all earlier tokens as read from the blocks: a wrong block gives another token."""

    def __init__(self, tables):
        self.tables, self.slots, self.previous = tables, {}, []

    def step(self, chunks):
        last, self.previous = self.previous, []
        for chunk in chunks:
            slots, copy = self.tables.append(chunk.running.sequence, len(chunk.tokens))
            assert copy is None
            for slot, token in zip(slots, chunk.tokens, strict=True):
                self.slots[slot] = last[-1 - token] if token < 0 else token
        for chunk in chunks:
            blocks, end = chunk.running.sequence.blocks, chunk.position + len(chunk.tokens)
            text = tuple(self.slots[blocks[i // SIZE] * SIZE + i % SIZE] for i in range(end))
            self.previous.append(next_token(text))
        return self.previous


def next_token(text):
    return random.Random(repr(text)).randrange(VOCABULARY)


def alone(request):
    text = list(request.prompt)
    while len(text) < len(request.prompt) + request.max_tokens:
        text.append(next_token(tuple(text)))
        if text[-1] in request.stop:
            break
    return text[len(request.prompt) :]


def scheduler(num_blocks=12, max_seqs=3, max_step_tokens=7, max_length=40):
    return Scheduler(BlockTables(num_blocks, SIZE), max_seqs, max_step_tokens, max_length, VOCABULARY)


def run(scheduled, requests):
    """Serves the requests as the engine does: each step is read after the next one was submitted."""
    for request in requests:
        scheduled.submit(request)
    device, flight, steps = Device(scheduled.tables), None, 0
    while True:
        chunks = scheduled.plan()
        assert sum(len(chunk.tokens) for chunk in chunks) <= scheduled.max_step_tokens
        assert len(chunks) <= scheduled.max_seqs and len({id(c.running) for c in chunks}) == len(chunks)
        last, flight = flight, (chunks, device.step(chunks)) if chunks else None
        if last is None and flight is None:
            return steps
        for chunk, token in zip(*last, strict=True) if last else ():
            if chunk.samples:
                scheduled.take(chunk, token)
        steps += 1


requests = st.builds(
    Request,
    # Few distinct tokens, so that prompts share prefixes.
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
    max_tokens=st.integers(1, 12),
    stop=st.sampled_from([frozenset(), frozenset(range(0, VOCABULARY, 5))]),
)


@given(st.lists(requests, max_size=8), st.integers(8, 14), st.integers(1, 4), st.integers(4, 9))
def test_tokens_are_those_of_each_request_alone(given, num_blocks, max_seqs, max_step_tokens):
    given = [dataclasses.replace(request, output=[], is_done=False) for request in given]
    scheduled = scheduler(num_blocks, max_seqs, max_step_tokens)
    run(scheduled, given)
    assert [request.output for request in given] == [alone(request) for request in given]
    assert all(request.is_done for request in given)
    assert scheduled.tables.free_blocks == num_blocks and not scheduled.running


def test_generation_goes_on_while_a_long_prompt_is_computed_in_chunks():
    scheduled = scheduler()
    short, long = Request([1], 4), Request([2] * 20, 2)
    run(scheduled, [short])
    scheduled.submit(dataclasses.replace(short, output=[], is_done=False))
    scheduled.submit(long)
    (first, chunk) = scheduled.plan()
    assert (first.tokens, first.samples) == ([1], True)
    assert (len(chunk.tokens), chunk.samples) == (6, False)
    scheduled.tables.append(first.running.sequence, 1)
    scheduled.tables.append(chunk.running.sequence, 6)
    (first, chunk) = scheduled.plan()
    assert first.tokens == [-1] and chunk.position == 6


def test_steps_are_as_few_as_the_room_allows():
    # 3 requests of 1 + 8 tokens in parallel, one step per token, and one to read the last.
    assert run(scheduler(), [Request([i], 8) for i in range(3)]) == 9


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([1], output=[2]), "request: expected a new one, got one with 1 tokens of output"),
        (Request([]), "prompt: expected at least 1 token, got 0"),
        (Request([1, 50]), r"prompt: expected tokens in \[0, 50\), got 50"),
        (Request([1], 0), "max_tokens: expected a count of 1 or more, got 0"),
        (Request([1] * 30, 11), "prompt: expected at most 40 tokens with max_tokens, got 30 and 11"),
        (Request([1] * 30, 10), "prompt: expected at most 8 blocks, got 10"),
        (Request([1], temperature=-1.0), "temperature: expected a number of 0 or more, got -1.0"),
        (Request([1], temperature=float("nan")), "temperature: expected a number of 0 or more, got nan"),
        (Request([1], top_k=65), r"top_k: expected a count in \[1, 64\], got 65"),
        (Request([1], top_p=0.0), r"top_p: expected a number in \(0, 1\], got 0.0"),
    ],
)
def test_requests_that_could_never_run(request_, message):
    with pytest.raises(ArgumentError, match=f"llama: {message}"):
        scheduler(num_blocks=8).submit(request_)


@pytest.mark.parametrize(
    ("changes", "name"), [({"max_seqs": 0}, "max_seqs"), ({"max_step_tokens": 2}, "max_step_tokens")]
)
def test_wrong_sizes(changes, name):
    with pytest.raises(ArgumentError, match=f"llama: {name}: expected"):
        scheduler(**changes)


def probabilities(logits, temperature, top_k, top_p):
    """The candidates of `draw`, in float64: the most probable tokens that together reach top_p."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])[:top_k]
    weights = torch.tensor([logits[i] / temperature for i in order], dtype=torch.float64).softmax(0)
    kept = [
        (i, w.item())
        for i, w, before in zip(order, weights, weights.cumsum(0) - weights, strict=True)
        if before < top_p
    ]
    total = sum(w for _, w in kept)
    return {i: w / total for i, w in kept}


@pytest.mark.parametrize("mode", ["direct", "compile"])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 64, 1.0), (0.5, 64, 1.0), (1.0, 3, 1.0), (2.0, 64, 0.6), (1.0, 5, 0.3)]
)
def test_draws_have_the_probabilities(mode, temperature, top_k, top_p):
    """Evenly spread numbers instead of random ones: each token's count is its expected count, within one."""
    torch._dynamo.reset()
    device, rows = torch_xla.device(), 4000
    logits = torch.randn(100, generator=torch.Generator().manual_seed(3)) * 2
    draws = Draws(
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        (torch.arange(rows) + 0.5) / rows,
    )
    greedy = torch.full((rows,), 7, dtype=torch.int32).to(device)
    got = in_mode(draw, mode)(logits.expand(rows, -1).to(device), greedy, Draws(*(t.to(device) for t in draws)))
    counts = torch.bincount(got.cpu(), minlength=100)
    expected = probabilities(logits.tolist(), temperature, top_k, top_p)
    if top_k == 64 and top_p == 1.0:
        # A draw is among 64 tokens.
        assert len(expected) == 64
    for token in range(100):
        assert abs(counts[token].item() - rows * expected.get(token, 0.0)) <= 1.01


def test_draws_at_temperature_0_and_at_the_edges():
    """A random number just below 1 becomes 1 in float32 and is past the last sum."""
    logits = torch.tensor([[1.0, 3.0, 2.0]] * 4)
    draws = Draws(
        torch.tensor([0.0, 1.0, 1.0, 1.0]),
        torch.tensor([1, 1, 3, 3], dtype=torch.int32),
        torch.tensor([1.0, 1.0, 1.0, 1e-6]),
        torch.tensor([0.9, 0.9, 1.0, 1.0]),
    )
    assert draw(logits, torch.full((4,), 5, dtype=torch.int32), draws).tolist() == [5, 1, 0, 1]
