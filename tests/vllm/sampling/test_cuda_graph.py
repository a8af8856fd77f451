"""What XLA:CUDA makes of `sample`, compiled for a GPU that need not be here."""

import re

import pytest
import torch
import torch_xla
import torch_xla.runtime

import pyxla
from pyxla.vllm.graph import in_mode
from pyxla.vllm.sampling import Level, Sampler, Tables, Variant, sample

pytestmark = pytest.mark.skipif(
    torch_xla.runtime.device_type() != "CPU", reason="compiles for a GPU that is not here: on the CPU"
)


@pytest.mark.parametrize("level", [Level.FILTERED, Level.ADJUSTED])
def test_a_step_on_cuda(level):
    """Loops of known length, as many passes as logits have bits, of which the host need not read the condition; no sort
    and no copy of the counts. 2048 tokens: a shape that no other test has."""
    device = torch_xla.device()
    sampler = Sampler(2048, 8, device)
    prepared = sampler.blank(4, Variant(level, False))

    def step(logits, packed, counts, bias, mask):
        return sample(logits, packed, Tables(counts, bias), mask, prepared.variant).tokens

    logits = torch.zeros(4, 2048, dtype=torch.bfloat16).to(device)
    arguments = logits, prepared.packed.to(device), *sampler.tables, prepared.mask
    on_cuda = pyxla.compiled_for(pyxla.inspect(in_mode(step, "compile"), *arguments), "H200")
    (module,) = on_cuda.modules
    passes = {Level.FILTERED: "16", Level.ADJUSTED: "32"}[level]
    assert re.findall(r'known_trip_count":{"n":"(\d+)"}', module.after) == [passes] * 2
    assert not re.search(r" sort\(| custom-call\(", module.after)
    counts = sampler.tables.counts.nbytes
    assert module.memory.in_place == (counts if level == Level.ADJUSTED else 0)
    assert not re.search(r"s32\[8,2048\]\S* copy\(", module.after)
