"""Inputs of silu_and_mul: those of every gated activation."""

from functools import partial

import pyxla_kernels._gated.cases as gated
import torch


def torch_silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """torch's own ops in the same dtype."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


CASES = [*gated.cases(torch_silu_and_mul), gated.zeros("f32-zeros")]

BAD_INPUTS = gated.bad_inputs("silu_and_mul")

# An exponential, a sum, a division and a product for each element of the result.
bench = partial(gated.bench, peer=torch_silu_and_mul, operations=4)

BENCHES = [
    bench("bf16", (16384, 16384), torch.bfloat16, "a prefill of 16384 tokens", "cuda"),
    bench("bf16", (64, 28672), torch.bfloat16, "a decode step of 64 sequences: latency", "cuda", "cpu"),
    bench("f32", (512, 8192), torch.float32, "a prefill of 512 tokens", "cpu"),
]
