"""Inputs of gelu_and_mul: those of every gated activation, and some with tanh; each with its reason."""

import pyxla_kernels._gated.cases as gated
import torch

from pyxla.benchmark import Bench
from pyxla.testing import BadInput, Case


def torch_gelu_and_mul(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """torch's own ops in the same dtype."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate=approximate) * up


CASES = [
    *gated.cases(torch_gelu_and_mul, approximate="none"),
    *(
        Case(
            f"{name}-tanh",
            "the approximation, in full vectors and a remainder of four",
            lambda g, dtype=dtype: gated.arguments(g, (5, 2008), dtype, approximate="tanh"),
            peer=torch_gelu_and_mul,
        )
        for name, dtype in gated.DTYPES.items()
    ),
    *(gated.zeros(f"f32-zeros-{approximate}", approximate=approximate) for approximate in ("none", "tanh")),
]

BAD_INPUTS = [
    *gated.bad_inputs("gelu_and_mul", approximate="none"),
    BadInput(
        "approximate",
        lambda g: {"x": torch.ones(2, 8), "approximate": "erf"},
        "gelu_and_mul: approximate: expected none or tanh, got erf",
    ),
]


def bench(name: str, shape: tuple[int, int], approximate: str, why: str, *devices: str) -> Bench:
    # For each element of the result: the function, counted as one operation, and two products.
    return gated.bench(
        f"{name}-{approximate}",
        shape,
        gated.DTYPES[name],
        why,
        *devices,
        peer=torch_gelu_and_mul,
        operations=3,
        approximate=approximate,
    )


BENCHES = [
    bench("bf16", (16384, 16384), "none", "a prefill of 16384 tokens", "cuda"),
    bench("bf16", (16384, 16384), "tanh", "as above, with tanh", "cuda"),
    bench("f32", (16384, 8192), "none", "float32, whose function is longer", "cuda"),
    bench("bf16", (64, 28672), "tanh", "a decode step of 64 sequences: latency", "cuda", "cpu"),
    bench("f32", (512, 8192), "none", "a prefill of 512 tokens", "cpu"),
]
