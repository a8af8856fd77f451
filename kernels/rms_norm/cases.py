"""Inputs of rms_norm, for its test and its benchmark; each with its reason."""

import torch

from pyxla.testing import BadInput, Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SHAPES = {
    "1x1": ((1, 1), "one element: the mean is the element's own square"),
    "3x5": ((3, 5), "odd and shorter than a vector: only the loop's remainder runs"),
    "2x3x64": ((2, 3, 64), "leading dimensions are flattened"),
    "5x1000": ((5, 1000), "full vectors and a remainder of eight"),
    "1x262144": ((1, 262144), "the longest row that models use"),
    "2x100003": ((2, 100003), "a long prime length: rows start unaligned"),
    "0x64": ((0, 64), "no row"),
    "2x0": ((2, 0), "rows without elements"),
    "1": ((7,), "rank 1: a single row without leading dimension"),
}


def arguments(
    generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> dict:
    """Rows of very different size, each with one outlier: a sum over the wrong row or a lost element shows."""
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
        "squares beyond float16's range: they must be formed in float32",
        lambda g: arguments(g, (4, 96), torch.float16, None) | {"x": torch.full((4, 96), 60000.0, dtype=torch.float16)},
    ),
    Case("f32-zero-row", "all zeros: eps alone keeps the result finite", lambda g: changed(x=torch.zeros(2, 8))),
    Case(
        "f32-eps-0",
        "eps 0.0 is a value, not an absent one",
        lambda g: arguments(g, (2, 8), torch.float32, None) | {"eps": 0.0},
    ),
    Case(
        "f32-nan",
        "a NaN stays in its row",
        lambda g: changed(x=torch.eye(3, 8).masked_fill(torch.eye(3, 8).cumsum(0) > 2, torch.nan)),
    ),
]


def changed(**changes) -> dict:
    """Good arguments with some of them replaced."""
    return {"x": torch.ones(2, 8), "weight": torch.ones(8), "eps": 1e-6} | changes


BAD_INPUTS = [
    BadInput(
        "dtype",
        lambda g: changed(x=torch.ones(2, 8, dtype=torch.int32)),
        "rms_norm: x: expected dtype float32 or bfloat16 or float16, got int32",
    ),
    BadInput("rank-0", lambda g: changed(x=torch.tensor(1.0)), "rms_norm: x: expected rank 1 or more, got shape ()"),
    BadInput(
        "weight-shape", lambda g: changed(weight=torch.ones(7)), "rms_norm: weight: expected shape (8,), got (7,)"
    ),
    BadInput(
        "weight-rank", lambda g: changed(weight=torch.ones(1, 8)), "rms_norm: weight: expected shape (8,), got (1, 8)"
    ),
    BadInput(
        "weight-dtype",
        lambda g: changed(x=torch.ones(2, 8, dtype=torch.bfloat16), weight=torch.ones(8, dtype=torch.float16)),
        "rms_norm: weight: expected dtype bfloat16 or float32, got float16",
    ),
    BadInput(
        "weight-narrower",
        lambda g: changed(weight=torch.ones(8, dtype=torch.bfloat16)),
        "rms_norm: weight: expected dtype float32, got bfloat16",
    ),
    BadInput("eps-nan", lambda g: changed(eps=float("nan")), "rms_norm: eps: expected a finite number, got nan"),
    BadInput(
        "eps-negative", lambda g: changed(eps=-1.0), "rms_norm: eps: expected a number that is not negative, got -1.0"
    ),
]
