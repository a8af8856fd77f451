"""Inputs of simple_add, for its test and its benchmark; each with its reason."""

import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SHAPES = {
    "scalar": ((), "rank 0: no dimension to count"),
    "empty": ((0, 3), "no elements: no thread may start"),
    "3x5": ((3, 5), "fewer elements than one vector"),
    "7x40001": ((7, 40001), "several pieces of the parallel loop, the last one odd"),
}


def arguments(generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, alpha: float) -> dict:
    """b is larger than a, so that a lost or doubled alpha shows in every dtype."""
    a = torch.randn(shape, generator=generator)
    b = 3 * torch.randn(shape, generator=generator)
    return {"a": a.to(dtype), "b": b.to(dtype), "alpha": alpha}


CASES = [
    Case(
        name=f"{dtype_name}-{shape_name}",
        why=why,
        build=lambda g, shape=shape, dtype=dtype: arguments(g, shape, dtype, alpha=0.75),
        peer=lambda a, b, alpha: torch.add(a, b, alpha=alpha),
    )
    for dtype_name, dtype in DTYPES.items()
    for shape_name, (shape, why) in SHAPES.items()
] + [
    Case(
        "f32-alpha-0",
        "alpha 0.0 is a value, not an absent one",
        lambda g: arguments(g, (4, 4), torch.float32, 0.0),
    ),
]


def changed(**changes) -> dict:
    """Good arguments with some of them replaced."""
    return {"a": torch.ones(2, 3), "b": torch.ones(2, 3), "alpha": 1.0} | changes


BAD_INPUTS = [
    BadInput(
        "dtype-int",
        lambda g: changed(a=torch.ones(2, 3, dtype=torch.int32)),
        "simple_add: a: expected dtype float32 or bfloat16 or float16, got int32",
    ),
    BadInput(
        "dtypes-differ",
        lambda g: changed(b=torch.ones(2, 3, dtype=torch.float16)),
        "simple_add: b: expected dtype float32, got float16",
    ),
    BadInput("broadcast", lambda g: changed(b=torch.ones(3)), "simple_add: b: expected shape (2, 3), got (3,)"),
    BadInput(
        "rank-0-broadcast", lambda g: changed(b=torch.tensor(1.0)), "simple_add: b: expected shape (2, 3), got ()"
    ),
]


def bench(name: str, shape: tuple[int, int], dtype: torch.dtype, why: str, *devices: str) -> Bench:
    return Bench(
        f"{name}-{shape[0]}x{shape[1]}",
        why,
        lambda g: arguments(g, shape, dtype, alpha=0.75),
        bytes=lambda a: nbytes(a["a"], a["b"], a["a"]),
        operations=lambda a: 2 * a["a"].numel(),
        peer=lambda a, b, alpha: torch.add(a, b, alpha=alpha),
        devices=devices,
    )


BENCHES = [
    bench("bf16", (16384, 8192), torch.bfloat16, "far more than any cache holds", "cuda"),
    bench("f32", (8192, 8192), torch.float32, "as above, 32 bits", "cuda"),
    bench("bf16", (1, 4096), torch.bfloat16, "latency", "cuda", "cpu"),
    bench("f32", (1024, 4096), torch.float32, "some milliseconds", "cpu"),
    bench("bf16", (1024, 4096), torch.bfloat16, "as above, 16 bits", "cpu"),
]
