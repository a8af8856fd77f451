"""Top-k and top-p against sorting, in float64."""

import numpy as np
import pytest
import torch
import torch_xla
from hypothesis import assume, given
from hypothesis import strategies as st

import pyxla
from pyxla.vllm.graph import in_mode
from pyxla.vllm.sampling.filters import ZERO_BITS, filtered
from tests.vllm.sampling.parameters import Parameters
from tests.vllm.sampling.reference import kept, margin
from tests.vllm.sampling.steps import MODES

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def stays(logits, top_k, top_p, mode="direct"):
    """[rows, vocabulary], bool."""
    device = torch_xla.device()
    x = logits.to(device)
    zero_bits = ZERO_BITS.get(logits.dtype, 0)

    def step(x, top_k, top_p):
        x = x.float()
        return filtered(x, (x - x.amax(1, keepdim=True)).exp(), top_k, top_p, zero_bits)

    arguments = torch.tensor(top_k, dtype=torch.int32).to(device), torch.tensor(top_p).to(device)
    return in_mode(step, mode)(x, *arguments).cpu().numpy() > 0


# 4 rows of 32 tokens: one graph for all examples. Halves have ties; with others every bit of a float matters.
HALVES = st.integers(-12, 12).map(lambda n: n / 2)
ROW = st.one_of(
    st.lists(HALVES, min_size=32, max_size=32),
    st.lists(st.floats(-20, 20, width=16), min_size=32, max_size=32),
    st.lists(st.one_of(st.just(-np.inf), HALVES), min_size=31, max_size=31).map(lambda row: [*row, 0.0]),
)


@given(
    rows=st.lists(ROW, min_size=4, max_size=4),
    top_k=st.lists(st.integers(1, 32), min_size=4, max_size=4),
    top_p=st.lists(st.one_of(st.just(1.0), st.floats(0.01, 0.99)), min_size=4, max_size=4),
    dtype=st.sampled_from(DTYPES),
)
def test_the_same_tokens_as_sorting(rows, top_k, top_p, dtype):
    logits = torch.tensor(rows).to(dtype)
    values = logits.double().numpy()
    params = [Parameters(top_k=k, top_p=p) for k, p in zip(top_k, top_p, strict=True)]
    assume(all(p.top_p == 1 or margin(row, p) > 1e-5 for row, p in zip(values, params, strict=True)))
    expected = [kept(row, p) for row, p in zip(values, params, strict=True)]
    assert (stays(logits, top_k, top_p) == expected).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_a_real_vocabulary(mode, dtype):
    """128,256 tokens: sums of many small weights, and in the 16-bit dtypes thousands of ties."""
    logits = (3 * torch.randn(4, 128256, generator=torch.Generator().manual_seed(0))).to(dtype)
    top_k, top_p = [50, 128256, 1, 1000], [1.0, 0.9, 0.5, 0.99]
    with pyxla.assert_no_fallback():
        found = stays(logits, top_k, top_p, mode)
    for row, k, p, got in zip(logits.double().numpy(), top_k, top_p, found, strict=True):
        order = np.sort(row)[::-1]
        threshold = order[k - 1]
        weights = np.exp(order - order[0]) * (order >= threshold)
        if p < 1:
            share = weights.cumsum() / weights.sum()
            # float32 sums of so many weights are right to about 1e-5 of the whole.
            low, high = np.searchsorted(share, [p - 2e-5, p + 2e-5])
            assert order[high] <= row[got].min() <= order[low]
            threshold = row[got].min()
        assert (got == (row >= threshold)).all()


def test_ties_stay_together():
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [-0.0, 0.0, -1.0, -1.0, -np.inf]])
    assert stays(logits, [2, 1], [1.0, 1.0]).tolist() == [[False, True, True, True, False], [True, True, *[False] * 3]]
    assert stays(logits, [5, 5], [0.1, 0.1]).tolist() == [[False, True, True, True, False], [True, True, *[False] * 3]]


def test_fewer_tokens_than_top_k():
    logits = torch.tensor([[-np.inf, 3.0, -np.inf, -200.0, -np.inf]])
    assert stays(logits, [3], [1.0]).tolist() == [[False, True, False, False, False]]  # exp(-203) is 0
    assert stays(logits / 100, [3], [1.0]).tolist() == [[False, True, False, True, False]]
