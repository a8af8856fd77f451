"""The CPU as the device of a bench, and no compiled graphs of an earlier test."""

import pytest
import torch

from pyxla.benchmark import host


@pytest.fixture(scope="module")
def device():
    """The CPU, with small caches instead of the real ones, so that no test has to fill those."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "_last_level_cache", lambda: 1 << 20)
        yield host.HostDevice()


@pytest.fixture(autouse=True)
def forget_compiled_graphs():
    """Otherwise the graphs of one test would count against dynamo's limit in the next."""
    torch._dynamo.reset()
