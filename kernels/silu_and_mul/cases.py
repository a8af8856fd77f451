"""Inputs of silu_and_mul, for its test and its benchmark; each with its reason."""

import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SHAPES = {
    "1x2": ((1, 2), "one element"),
    "3x10": ((3, 10), "d odd and shorter than a vector: one element per thread"),
    "2x3x128": ((2, 3, 128), "leading dimensions are flattened; rows of whole vectors"),
    "7x24008": ((7, 24008), "d is no multiple of eight; pieces that begin inside a row"),
    "0x64": ((0, 64), "no row"),
    "2x0": ((2, 0), "rows without elements"),
    "16": ((16,), "rank 1: a single row without leading dimension"),
}


def arguments(generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> dict:
    """Gates on the bend and far out on both sides; every row's factors have their own size: a wrong half shows."""
    gate, up = (torch.randn((*shape[:-1], shape[-1] // 2), generator=generator) for _ in range(2))
    gate = 4 * gate
    if gate.shape[-1] > 3:
        gate[..., 0], gate[..., -1] = 50, -100
    if len(shape) > 1:
        up = up * torch.logspace(-2, 2, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return {"x": torch.cat([gate, up], dim=-1).to(dtype)}


def torch_silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """torch's own ops in the same dtype."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


CASES = [
    Case(
        f"{name}-{shape_name}",
        why,
        lambda g, shape=shape, dtype=dtype: arguments(g, shape, dtype),
        peer=torch_silu_and_mul,
    )
    for name, dtype in DTYPES.items()
    for shape_name, (shape, why) in SHAPES.items()
] + [
    Case("f32-zeros", "the bend itself, and -0.0", lambda g: {"x": torch.tensor([[0.0, -0.0, 1.0, 1.0]])}),
]

BAD_INPUTS = [
    BadInput(
        "dtype",
        lambda g: {"x": torch.ones(2, 8, dtype=torch.int32)},
        "silu_and_mul: x: expected dtype float32 or bfloat16 or float16, got int32",
    ),
    BadInput("rank-0", lambda g: {"x": torch.tensor(1.0)}, "silu_and_mul: x: expected rank 1 or more, got shape ()"),
    BadInput("odd", lambda g: {"x": torch.ones(2, 7)}, "silu_and_mul: x: expected an even last dimension, got 7"),
]


def bench(name: str, shape: tuple[int, int], dtype: torch.dtype, why: str, *devices: str) -> Bench:
    return Bench(
        f"{name}-{shape[0]}x{shape[1]}",
        why,
        lambda g: arguments(g, shape, dtype),
        bytes=lambda a: nbytes(a["x"]) * 3 // 2,
        # An exponential, a sum, a division and a product for each element of the result.
        operations=lambda a: 2 * a["x"].numel(),
        peer=torch_silu_and_mul,
        devices=devices,
    )


BENCHES = [
    bench("bf16", (16384, 16384), torch.bfloat16, "a prefill of 16384 tokens", "cuda"),
    bench("bf16", (64, 28672), torch.bfloat16, "a decode step of 64 sequences: latency", "cuda", "cpu"),
    bench("f32", (512, 8192), torch.float32, "a prefill of 512 tokens", "cpu"),
]
