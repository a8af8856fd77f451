"""Inputs of fused_add_rms_norm, for its test and its benchmark; each with its reason."""

from dataclasses import replace

import pyxla_kernels._rms_norm.cases as norm
import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

SHAPES = norm.SHORT_ROWS | {
    "1x100003": ((1, 100003), "a long prime length: nothing is aligned"),
    "2x65536": ((2, 65536), "longer than the registers hold: read twice"),
}


def arguments(
    generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> dict:
    """Rows of very different magnitude in x and residual, so that a sum over the wrong row or a lost addend shows."""
    x, residual = (torch.randn(shape, generator=generator) for _ in range(2))
    if len(shape) > 1:
        size = torch.logspace(-2, 2, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        x, residual = x * size, residual * size
    if x.numel():
        residual[..., -1] *= 8
    weight = None if weight_dtype is None else (1 + 0.5 * torch.randn(shape[-1], generator=generator)).to(weight_dtype)
    return {"x": x.to(dtype), "residual": residual.to(dtype), "weight": weight, "eps": 1e-6}


def torch_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """torch's own ops in the same dtype."""
    factor = None if weight is None else weight.to(x.dtype)
    return torch.nn.functional.rms_norm(residual.add_(x), x.shape[-1:], factor, eps)


def changed(**changes) -> dict:
    """Good arguments with some of them replaced; residual has x's shape and dtype."""
    good = norm.changed(**changes)
    return {"residual": torch.ones_like(good["x"])} | good


CASES = [
    Case(
        f"{name}-{shape_name}",
        why,
        lambda g, shape=shape, dtype=dtype: arguments(g, shape, dtype, dtype),
        peer=torch_add_rms_norm,
    )
    for name, dtype in norm.DTYPES.items()
    for shape_name, (shape, why) in SHAPES.items()
    # Long and empty rows run the same code in both 16-bit dtypes.
    if name != "f16" or shape_name in ("3x5", "2x3x64", "5x1000", "2x4096")
] + [
    Case(
        "bf16-weight-f32",
        "master weights: the result is rounded once",
        lambda g: arguments(g, (4, 96), torch.bfloat16, torch.float32),
    ),
    Case("bf16-no-weight", "an absent operand", lambda g: arguments(g, (4, 96), torch.bfloat16, None)),
    Case(
        "f16-large",
        "a sum and squares beyond float16's range: they must be computed in float32",
        lambda g: (
            arguments(g, (4, 96), torch.float16, None)
            | {name: torch.full((4, 96), 40000.0, dtype=torch.float16) for name in ("x", "residual")}
        ),
    ),
    Case(
        "bf16-cancels",
        "sums far below their addends: they must not be rounded before the norm",
        lambda g: cancelling(g, (4, 96)),
    ),
    Case(
        "f32-zero-sum",
        "all zeros: eps alone keeps the result finite",
        lambda g: changed(x=torch.ones(2, 8), residual=-torch.ones(2, 8)),
    ),
    Case(
        "f32-eps-0",
        "eps 0.0 is a value, not an absent one",
        lambda g: arguments(g, (2, 8), torch.float32, None) | {"eps": 0.0},
    ),
]


def cancelling(generator: torch.Generator, shape: tuple[int, ...]) -> dict:
    """residual is nearly -x."""
    good = arguments(generator, shape, torch.bfloat16, torch.bfloat16)
    noise = 1 + 0.05 * torch.randn(shape, generator=generator)
    return good | {"residual": (-good["x"].float() * noise).to(torch.bfloat16)}


BAD_INPUTS = [
    *(replace(bad, build=lambda g, bad=bad: changed(**bad.build(g))) for bad in norm.bad_inputs("fused_add_rms_norm")),
    BadInput(
        "residual-dtype",
        lambda g: changed(residual=torch.ones(2, 8, dtype=torch.bfloat16)),
        "fused_add_rms_norm: residual: expected dtype float32, got bfloat16",
    ),
    BadInput(
        "residual-shape",
        lambda g: changed(residual=torch.ones(1, 8)),
        "fused_add_rms_norm: residual: expected shape (2, 8), got (1, 8)",
    ),
]


def bench(name: str, shape: tuple[int, int], dtype: torch.dtype, why: str, *devices: str) -> Bench:
    return Bench(
        f"{name}-{shape[0]}x{shape[1]}",
        why,
        lambda g: norm.near_one(arguments(g, shape, dtype, dtype), g),
        # x is read, residual read and written, the result written.
        bytes=lambda a: 4 * nbytes(a["x"]) + nbytes(a["weight"]),
        # Two sums, a square, and two products for each element.
        operations=lambda a: 5 * a["x"].numel(),
        peer=torch_add_rms_norm,
        devices=devices,
    )


BENCHES = [
    bench("bf16", (16384, 4096), torch.bfloat16, "a prefill of 16384 tokens", "cuda"),
    bench("bf16", (16384, 8192), torch.bfloat16, "as above, a larger model", "cuda"),
    bench("bf16", (64, 8192), torch.bfloat16, "a decode step of 64 sequences: latency", "cuda", "cpu"),
    bench("f32", (2048, 4096), torch.float32, "a prefill of 2048 tokens", "cpu"),
]
