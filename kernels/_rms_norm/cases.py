"""Inputs of the ops that normalise by the root mean square, for their tests and benchmarks; each with its reason."""

import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SHORT_ROWS = {
    "1x1": ((1, 1), "one element: the mean is the element's own square"),
    "3x5": ((3, 5), "odd and shorter than a vector: one element at a time"),
    "2x3x64": ((2, 3, 64), "leading dimensions are flattened; several rows per CTA"),
    "5x1000": ((5, 1000), "some threads have no vector"),
    "2x4096": ((2, 4096), "every thread of a CTA has vectors"),
    "0x64": ((0, 64), "no rows"),
    "2x0": ((2, 0), "rows without elements"),
    "7": ((7,), "rank 1: a single row without leading dimensions"),
}
SHAPES = SHORT_ROWS | {
    "300x2880": ((300, 2880), "enough rows for two vectors per thread; some threads have none"),
    "1x262144": ((1, 262144), "the longest row that models use: read twice"),
    "2x100003": ((2, 100003), "a long prime length: rows start unaligned"),
}


def arguments(
    generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> dict:
    """Rows of very different magnitude, each with one outlier, so a sum over the wrong row or a lost element shows."""
    x = torch.randn(shape, generator=generator)
    if len(shape) > 1:
        x = x * torch.logspace(-2, 2, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    if x.numel():
        x[..., -1] *= 8
    weight = None if weight_dtype is None else (1 + 0.5 * torch.randn(shape[-1], generator=generator)).to(weight_dtype)
    return {"x": x.to(dtype), "weight": weight, "eps": 1e-6}


def torch_rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """torch's own op in the same dtype."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], None if weight is None else weight.to(x.dtype), eps)


CASES = [
    Case(
        f"{name}-{shape_name}",
        why,
        lambda g, shape=shape, dtype=dtype: arguments(g, shape, dtype, dtype),
        peer=torch_rms_norm,
    )
    for name, dtype in DTYPES.items()
    for shape_name, (shape, why) in SHAPES.items()
    # One dtype is enough for this shape: another one changes only loads and stores.
    if name == "bf16" or shape_name != "300x2880"
] + [
    Case(
        "bf16-weight-f32",
        "master weights: the sum is rounded once",
        lambda g: arguments(g, (4, 96), torch.bfloat16, torch.float32),
    ),
    Case("f16-weight-f32", "as above", lambda g: arguments(g, (4, 96), torch.float16, torch.float32)),
    Case("f32-no-weight", "weight is None: an absent operand", lambda g: arguments(g, (4, 96), torch.float32, None)),
    Case("bf16-no-weight", "as above", lambda g: arguments(g, (4, 96), torch.bfloat16, None)),
    Case(
        "f16-large",
        "squares beyond float16's range: they must be computed in float32",
        lambda g: arguments(g, (4, 96), torch.float16, None) | {"x": torch.full((4, 96), 60000.0, dtype=torch.float16)},
    ),
    Case("f32-zero-row", "all zeros: eps alone keeps the result finite", lambda g: changed(x=torch.zeros(2, 8))),
    Case(
        "f32-eps-0",
        "eps 0.0 is a value, not an absent one",
        lambda g: arguments(g, (2, 8), torch.float32, None) | {"eps": 0.0},
    ),
]


def changed(**changes) -> dict:
    """Good arguments with some of them replaced."""
    return {"x": torch.ones(2, 8), "weight": torch.ones(8), "eps": 1e-6} | changes


def bad_inputs(op: str) -> list[BadInput]:
    """Inputs that the op of this name rejects, with its messages."""
    return [
        BadInput(
            "dtype",
            lambda g: changed(x=torch.ones(2, 8, dtype=torch.int32)),
            f"{op}: x: expected dtype float32 or bfloat16 or float16, got int32",
        ),
        BadInput("rank-0", lambda g: changed(x=torch.tensor(1.0)), f"{op}: x: expected rank 1 or more, got shape ()"),
        BadInput(
            "weight-shape", lambda g: changed(weight=torch.ones(7)), f"{op}: weight: expected shape (8,), got (7,)"
        ),
        BadInput(
            "weight-rank", lambda g: changed(weight=torch.ones(1, 8)), f"{op}: weight: expected shape (8,), got (1, 8)"
        ),
        BadInput(
            "weight-dtype",
            lambda g: changed(x=torch.ones(2, 8, dtype=torch.bfloat16), weight=torch.ones(8, dtype=torch.float16)),
            f"{op}: weight: expected dtype bfloat16 or float32, got float16",
        ),
        BadInput(
            "weight-narrower",
            lambda g: changed(weight=torch.ones(8, dtype=torch.bfloat16)),
            f"{op}: weight: expected dtype float32, got bfloat16",
        ),
        BadInput("eps-nan", lambda g: changed(eps=float("nan")), f"{op}: eps: expected a finite number, got nan"),
        BadInput(
            "eps-negative", lambda g: changed(eps=-1.0), f"{op}: eps: expected a number that is not negative, got -1.0"
        ),
    ]


def near_one(arguments: dict, generator: torch.Generator) -> dict:
    """The arguments with weights near 1, so that no result is zero when each call takes the previous call's result."""
    weight = arguments["weight"]
    return arguments | {"weight": (1 + 0.01 * torch.randn(weight.shape, generator=generator)).to(weight.dtype)}


def bench(name: str, shape: tuple[int, int], dtype: torch.dtype, why: str, *devices: str) -> Bench:
    return Bench(
        f"{name}-{shape[0]}x{shape[1]}",
        why,
        lambda g: near_one(arguments(g, shape, dtype, dtype), g),
        bytes=lambda a: nbytes(a["x"], a["x"], a["weight"]),
        # A square, a sum, and two products for each element.
        operations=lambda a: 4 * a["x"].numel(),
        peer=torch_rms_norm,
        devices=devices,
    )


BENCHES = [
    bench("bf16", (16384, 4096), torch.bfloat16, "a prefill of 16384 tokens", "cuda"),
    bench("bf16", (16384, 8192), torch.bfloat16, "as above, a larger model", "cuda"),
    bench("bf16", (64, 8192), torch.bfloat16, "a decode step of 64 sequences: latency", "cuda", "cpu"),
    bench("bf16", (1, 4096), torch.bfloat16, "one token: latency", "cuda", "cpu"),
    bench("f32", (2048, 4096), torch.float32, "a prefill of 2048 tokens", "cpu"),
    bench("bf16", (2048, 4096), torch.bfloat16, "as above, 16 bits", "cpu"),
    bench("bf16", (16, 262144), torch.bfloat16, "the longest rows that models use", "cpu"),
]
