"""Inputs of fused_all_reduce_rms_norm, for its tests and its benchmark; each with its reason."""

import pyxla_kernels._rms_norm.cases as norm
import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

SHAPES = {
    "1x1x1": ((1, 1, 1), "one part of one element"),
    "2x3x5": ((2, 3, 5), "odd and shorter than a vector: one element at a time"),
    "4x2x3x64": ((4, 2, 3, 64), "leading dimensions are flattened"),
    "3x5x1000": ((3, 5, 1000), "some threads have no vector"),
    "2x2x4096": ((2, 2, 4096), "a whole row in one pass"),
    "8x2x8192": ((8, 2, 8192), "the most parts; several vectors per thread"),
    "2x0x64": ((2, 0, 64), "no rows"),
    "2x2x0": ((2, 2, 0), "rows without elements"),
    "2x7": ((2, 7), "a single row without leading dimensions"),
    "2x300x96": ((2, 300, 96), "more rows than CTAs"),
    "2x1x40000": ((2, 1, 40000), "longer than the registers hold: read twice"),
}


def arguments(
    generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> dict:
    """Parts and rows of very different magnitude, so that a part lost or taken twice shows, and a wrong row too."""
    parts = torch.stack([norm.arguments(generator, shape[1:], dtype, None)["x"] for _ in range(shape[0])])
    size = torch.linspace(1, 3, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    good = norm.arguments(generator, shape[1:], dtype, weight_dtype)
    residual, weight = good["x"], good["weight"]
    return {"x": (parts * size).to(dtype), "residual": residual, "weight": weight, "groups": [], "eps": 1e-6}


def torch_sum_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, groups: list[int], eps: float
) -> torch.Tensor:
    """torch's own ops in the same dtype."""
    factor = None if weight is None else weight.to(x.dtype)
    return torch.nn.functional.rms_norm(residual.add_(x.sum(dim=0)), x.shape[-1:], factor, eps)


def changed(**changes) -> dict:
    """Good arguments with some of them replaced; residual has a part's shape and dtype."""
    good = {"x": torch.ones(2, 3, 8), "weight": torch.ones(8), "groups": [], "eps": 1e-6} | changes
    residual = good["x"][0] if good["x"].dim() and len(good["x"]) else torch.ones(3, 8)
    return {"residual": torch.ones_like(residual)} | good


CASES = [
    Case(
        f"{name}-{shape_name}",
        why,
        lambda g, shape=shape, dtype=dtype: arguments(g, shape, dtype, dtype),
        peer=torch_sum_add_rms_norm,
    )
    for name, dtype in norm.DTYPES.items()
    for shape_name, (shape, why) in SHAPES.items()
    # Long and empty rows run the same code in both 16-bit dtypes.
    if name != "f16" or shape_name in ("2x3x5", "4x2x3x64", "2x2x4096")
] + [
    Case(
        "bf16-weight-f32",
        "master weights: the result is rounded once",
        lambda g: arguments(g, (2, 4, 96), torch.bfloat16, torch.float32),
    ),
    Case("bf16-no-weight", "an absent operand", lambda g: arguments(g, (2, 4, 96), torch.bfloat16, None)),
    Case(
        "f16-large",
        "a sum and squares beyond float16's range: they must be computed in float32",
        lambda g: (
            arguments(g, (2, 4, 96), torch.float16, None)
            | {
                "x": torch.full((2, 4, 96), 40000.0, dtype=torch.float16),
                "residual": torch.full((4, 96), -40000.0, dtype=torch.float16),
            }
        ),
    ),
    Case(
        "f32-one-device",
        "a group of one: no device to wait for",
        lambda g: arguments(g, (1, 4, 96), torch.float32, torch.float32) | {"groups": [0, 1], "channel": 3},
    ),
]

BAD_INPUTS = [
    BadInput(
        "dtype",
        lambda g: changed(x=torch.ones(2, 3, 8, dtype=torch.int32)),
        "fused_all_reduce_rms_norm: x: expected dtype float32 or bfloat16 or float16, got int32",
    ),
    BadInput(
        "rank-1",
        lambda g: changed(x=torch.ones(8)),
        "fused_all_reduce_rms_norm: x: expected rank 2 or more, got shape (8,)",
    ),
    BadInput(
        "no-parts",
        lambda g: changed(x=torch.ones(0, 3, 8)),
        "fused_all_reduce_rms_norm: x: expected 1 to 8 parts, got 0",
    ),
    BadInput(
        "too-many-parts",
        lambda g: changed(x=torch.ones(9, 3, 8)),
        "fused_all_reduce_rms_norm: x: expected 1 to 8 parts, got 9",
    ),
    BadInput(
        "parts-on-several-devices",
        lambda g: changed(groups=[0, 0]),
        "fused_all_reduce_rms_norm: x: expected 1 part on each device, got 2",
    ),
    BadInput(
        "large-group",
        lambda g: changed(x=torch.ones(1, 3, 8), groups=[0] * 9),
        "fused_all_reduce_rms_norm: groups: expected at most 8 devices in a group, got 9",
    ),
    BadInput(
        "residual-dtype",
        lambda g: changed(residual=torch.ones(3, 8, dtype=torch.bfloat16)),
        "fused_all_reduce_rms_norm: residual: expected dtype float32, got bfloat16",
    ),
    BadInput(
        "residual-shape",
        lambda g: changed(residual=torch.ones(2, 3, 8)),
        "fused_all_reduce_rms_norm: residual: expected shape (3, 8), got (2, 3, 8)",
    ),
    BadInput(
        "weight-shape",
        lambda g: changed(weight=torch.ones(7)),
        "fused_all_reduce_rms_norm: weight: expected shape (8,), got (7,)",
    ),
    BadInput(
        "eps-negative",
        lambda g: changed(eps=-1.0),
        "fused_all_reduce_rms_norm: eps: expected a number that is not negative, got -1.0",
    ),
    BadInput(
        "timeout-negative",
        lambda g: changed(timeout=-1.0),
        "fused_all_reduce_rms_norm: timeout: expected a number that is not negative, got -1.0",
    ),
]


def bench(shape: tuple[int, int, int], why: str, *devices: str) -> Bench:
    return Bench(
        "bf16-" + "x".join(map(str, shape)),
        why,
        lambda g: norm.near_one(arguments(g, shape, torch.bfloat16, torch.bfloat16), g),
        # x is read, residual read and written, the result written.
        bytes=lambda a: nbytes(a["x"], a["weight"]) + 3 * nbytes(a["residual"]),
        # A sum for each part, a square, and two products for each element.
        operations=lambda a: a["x"].numel() + 3 * a["residual"].numel(),
        peer=torch_sum_add_rms_norm,
        devices=devices,
    )


# On one device: what the sum costs beside the exchange, which benchmarks/bench_tensor_parallel.py times.
BENCHES = [
    bench((2, 64, 4096), "a decode step of 64 sequences on two devices: latency", "cuda", "cpu"),
    bench((8, 64, 4096), "as above, eight devices", "cuda", "cpu"),
]
