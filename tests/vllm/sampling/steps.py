"""Steps of a sampler on the device, in both modes."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
import torch_xla

from pyxla.vllm.graph import in_mode
from pyxla.vllm.sampling import Prepared, Sampled, Sampler, Tables, Variant, sample

MODES = ["direct", "compile"]


@cache
def compiled(mode: str, variant: Variant, num_logprobs: int, logprobs_mode: str):
    def step(logits, packed, counts, bias, mask):
        return sample(logits, packed, Tables(counts, bias), mask, variant, num_logprobs, logprobs_mode)

    return in_mode(step, mode)


def run(
    sampler: Sampler,
    prepared: Prepared,
    logits: torch.Tensor,
    mode: str = "direct",
    num_logprobs: int = 4,
    logprobs_mode: str = "raw_logprobs",
) -> Sampled:
    """The results of a step, on the CPU."""
    device = torch_xla.device()
    step = compiled(mode, prepared.variant, num_logprobs, logprobs_mode)
    found = step(logits.to(device), prepared.packed.to(device), *sampler.tables, prepared.mask)
    if mode == "direct":
        torch_xla.sync()
    logprobs = found.logprobs
    return Sampled(found.tokens.cpu(), logprobs and type(logprobs)(*(tensor.cpu() for tensor in logprobs)))


def words(allowed: Sequence[int], vocab_size: int) -> np.ndarray:
    """xgrammar's mask of a row."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
