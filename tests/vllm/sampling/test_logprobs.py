"""Log probabilities against float64."""

import numpy as np
import pytest
import torch
import torch_xla
from hypothesis import given
from hypothesis import strategies as st

import pyxla
from pyxla import ArgumentError
from pyxla.vllm.graph import in_mode
from pyxla.vllm.sampling import PromptLogprobs, score
from pyxla.vllm.sampling.logprobs import largest
from tests.vllm.sampling.steps import MODES


def expected(logits, token, num):
    """Token ids, values and rank of a row."""
    values = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    order = np.argsort(-values, kind="stable")[:num]
    return [token, *order], values[[token, *order]], (values >= values[token]).sum()


@pytest.mark.parametrize("mode", MODES)
# 0: the chosen token alone. 1000 tokens with 20: by blocks. 40 with 30: by sorting all. 128256: a real vocabulary.
@pytest.mark.parametrize(("vocab_size", "num"), [(40, 0), (40, 30), (1000, 20), (128256, 20)])
def test_score(mode, vocab_size, num):
    logits = torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor([0, vocab_size - 1, int(logits[2].argmax())], dtype=torch.int32)
    device = torch_xla.device()
    with pyxla.assert_no_fallback():
        found = in_mode(lambda x, t: score(x, t, num), mode)(logits.to(device), tokens.to(device))
    assert [tensor.dtype for tensor in found] == [torch.int32, torch.float32, torch.int32]
    for row, token, ids, values, rank in zip(
        logits.double().numpy(), tokens, *map(torch.Tensor.cpu, found), strict=True
    ):
        want = expected(row, int(token), num)
        assert ids.tolist() == want[0] and int(rank) == want[2]
        np.testing.assert_allclose(values, want[1], atol=2e-5)


@given(st.lists(st.integers(-5, 5), min_size=50, max_size=50), st.sampled_from([1, 2, 7, 50]))
def test_largest_with_ties(row, num):
    """The values are right, and each column has its value and comes once."""
    logits = torch.tensor([row], dtype=torch.float32)
    values, columns = (tensor.cpu()[0] for tensor in largest(logits.to(torch_xla.device()), num))
    assert values.tolist() == sorted(row, reverse=True)[:num]
    assert logits[0][columns.long()].tolist() == values.tolist() and len(set(columns.tolist())) == num


@pytest.mark.parametrize("mode", MODES)
def test_prompts_in_chunks(mode):
    """Steps of 5, 6 and 3 tokens at other rows each time, scored 4 rows at a time; the states are half the logits."""
    generator = torch.Generator().manual_seed(2)
    prompt = torch.randint(0, 40, (13,), generator=generator).tolist()
    states = torch.randn(14, 40, generator=generator)
    prompts = PromptLogprobs(lambda hidden: 2 * hidden, num_logprobs=5, chunk_rows=4, mode=mode)
    prompts.add("a", prompt, 3)
    found = []
    for first, computed, scheduled in [(0, 0, 5), (7, 5, 6), (2, 11, 3)]:
        hidden = torch.zeros(16, 40)
        hidden[first : first + scheduled] = states[computed : computed + scheduled]
        found.append(prompts.step("a", hidden.to(torch_xla.device()), first, computed, scheduled))
    assert found[:2] == [None, None]
    assert prompts.step("a", hidden, 0, 0, 1) is None, "it was removed"
    for place in range(12):
        want = expected(2 * states[place].double().numpy(), prompt[place + 1], 3)
        ids, values, rank = (tensor[place] for tensor in found[2])
        assert ids.tolist() == want[0] and int(rank) == want[2]
        np.testing.assert_allclose(values, want[1], atol=2e-5)
    assert [len(tensor) for tensor in found[2]] == [12] * 3


def test_more_prompt_logprobs_than_the_graph_has():
    with pytest.raises(ArgumentError, match=r"PromptLogprobs: num: expected a count in \[0, 5\], got 6"):
        PromptLogprobs(lambda hidden: hidden, num_logprobs=5).add("a", [1], 6)
