"""Inputs of fused_add_rms_norm, for its test and its benchmark; each with its reason."""

import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SHAPES = {
    "1x1": ((1, 1), "one element: the mean is the element's own square"),
    "3x5": ((3, 5), "odd and shorter than a vector: one element at a time"),
    "2x3x64": ((2, 3, 64), "leading dimensions are flattened; several rows per block"),
    "5x1000": ((5, 1000), "threads without a vector"),
    "2x4096": ((2, 4096), "every thread of a block has its vectors"),
    "1x100003": ((1, 100003), "a long prime length: nothing is aligned"),
    "2x65536": ((2, 65536), "longer than the registers hold: read twice"),
    "0x64": ((0, 64), "no row"),
    "2x0": ((2, 0), "rows without elements"),
    "7": ((7,), "rank 1: a single row without leading dimension"),
}


def arguments(
    generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> dict:
    """Rows of very different size, x and residual alike: a sum over the wrong row, or one addend lost, shows."""
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
    """Good arguments with some of them replaced."""
    return {"x": torch.ones(2, 8), "residual": torch.ones(2, 8), "weight": torch.ones(8), "eps": 1e-6} | changes


CASES = [
    Case(
        f"{name}-{shape_name}",
        why,
        lambda g, shape=shape, dtype=dtype: arguments(g, shape, dtype, dtype),
        peer=torch_add_rms_norm,
    )
    for name, dtype in DTYPES.items()
    for shape_name, (shape, why) in SHAPES.items()
    # The long rows and the empty ones are the same code in each 16-bit dtype.
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
        "a sum and squares beyond float16's range: they must be formed in float32",
        lambda g: (
            arguments(g, (4, 96), torch.float16, None)
            | {name: torch.full((4, 96), 40000.0, dtype=torch.float16) for name in ("x", "residual")}
        ),
    ),
    Case(
        "bf16-cancels",
        "sums far below their addends: what is normalised is not rounded first",
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
    BadInput(
        "dtype",
        lambda g: changed(x=torch.ones(2, 8, dtype=torch.int32)),
        "fused_add_rms_norm: x: expected dtype float32 or bfloat16 or float16, got int32",
    ),
    BadInput(
        "rank-0",
        lambda g: changed(x=torch.tensor(1.0), residual=torch.tensor(1.0)),
        "fused_add_rms_norm: x: expected rank 1 or more, got shape ()",
    ),
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
    BadInput(
        "weight-shape",
        lambda g: changed(weight=torch.ones(7)),
        "fused_add_rms_norm: weight: expected shape (8,), got (7,)",
    ),
    BadInput(
        "weight-dtype",
        lambda g: changed(weight=torch.ones(8, dtype=torch.bfloat16)),
        "fused_add_rms_norm: weight: expected dtype float32, got bfloat16",
    ),
    BadInput(
        "eps-nan", lambda g: changed(eps=float("nan")), "fused_add_rms_norm: eps: expected a finite number, got nan"
    ),
    BadInput(
        "eps-negative",
        lambda g: changed(eps=-1.0),
        "fused_add_rms_norm: eps: expected a number that is not negative, got -1.0",
    ),
]


def bench(name: str, shape: tuple[int, int], dtype: torch.dtype, why: str, *devices: str) -> Bench:
    """Weights near 1, so that a step in which each call takes the last one's result does not run into zeros."""

    def build(generator: torch.Generator) -> dict:
        weight = 1 + 0.01 * torch.randn(shape[-1], generator=generator)
        return arguments(generator, shape, dtype, dtype) | {"weight": weight.to(dtype)}

    return Bench(
        f"{name}-{shape[0]}x{shape[1]}",
        why,
        build,
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
