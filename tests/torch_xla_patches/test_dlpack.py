"""Capsules of torch_xla, without what it gets wrong."""

import os
import sys
from pathlib import Path

import torch
import torch_xla

from pyxla.torch_xla_patches.dlpack import await_buffer, to_capsule


def test_a_capsule_has_one_reference():
    capsule = to_capsule(torch.ones(4).to(torch_xla.device()))
    assert sys.getrefcount(capsule) == 2  # its name here, and the argument


def test_a_capsule_that_nobody_takes_frees_the_buffer():
    """256 buffers of 1 MiB, each gone before the next."""
    before = 0
    for count in range(264):
        if count == 8:  # by now the allocators have what they keep
            before = _resident_bytes()
        await_buffer(torch.ones(1 << 18).to(torch_xla.device()))
    assert _resident_bytes() - before < 32 << 20


def test_a_capsule_leaves_the_data_as_it_is():
    x = torch.arange(1 << 15, dtype=torch.float32).to(torch_xla.device())
    for _ in range(3):
        await_buffer(x)
    assert torch.equal(x.cpu(), torch.arange(1 << 15, dtype=torch.float32))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
