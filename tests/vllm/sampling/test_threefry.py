"""Threefry and the numbers made of it."""

import numpy as np
import pytest
import torch
import torch_xla

import pyxla
from pyxla.vllm.graph import in_mode
from pyxla.vllm.sampling.threefry import exponential, threefry
from tests.vllm.sampling.steps import MODES

# From the authors' Random123: key, counter, result.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


def column(values):
    return torch.from_numpy(np.array(values, np.uint32).view(np.int32)).to(torch_xla.device())


@pytest.mark.parametrize("mode", MODES)
def test_known_answers(mode):
    keys, counters, results = (np.array(part, np.uint32).T for part in zip(*KNOWN, strict=True))
    with pyxla.assert_no_fallback():
        found = in_mode(threefry, mode)(tuple(map(column, keys)), tuple(map(column, counters)))
    assert [word.cpu().numpy().view(np.uint32).tolist() for word in found] == results.tolist()


def test_exponential_numbers():
    """Their distribution, in 64 equally likely classes: chi-square with 63 degrees of freedom, p = 0.001 at 103."""
    count = 1 << 16
    zeros, numbers = column([7] * count), column(range(count))
    drawn = exponential((zeros, zeros), (numbers, zeros)).cpu().numpy().astype(np.float64)
    assert drawn.min() > 0 and np.isfinite(drawn).all()
    classes = np.bincount((64 * -np.expm1(-drawn)).astype(int), minlength=64)
    assert ((classes - count / 64) ** 2 / (count / 64)).sum() < 103
    # The smallest of n numbers is about 1 / n, and has as many digits as the others.
    assert 1e-7 < drawn.min() < 1e-3 and len(np.unique(drawn)) > 0.99 * count
