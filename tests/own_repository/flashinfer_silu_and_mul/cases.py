"""Inputs of flashinfer_silu_and_mul, for its test and its benchmark; each with its reason."""

import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

SHAPES = {
    "1x16": ((1, 16), "one row of one load of 16-bit elements"),
    "empty": ((0, 16), "no row: no CTA may start"),
    "17x176": ((17, 176), "loads that are no power of two, and one row more than a piece on the host"),
    "3x28672": ((3, 28672), "a row of several loads per thread, and elements that are left"),
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def arguments(generator: torch.Generator, shape: tuple[int, int] = (3, 32), dtype: torch.dtype = torch.float32) -> dict:
    return {"x": torch.randn(shape, generator=generator).to(dtype)}


CASES = [
    Case(f"{name}-{size}", why, build=lambda g, shape=shape, dtype=dtype: arguments(g, shape, dtype))
    for name, dtype in DTYPES.items()
    for size, (shape, why) in SHAPES.items()
]

BAD_INPUTS = [
    BadInput(
        name,
        lambda g, x=x: {"x": x},
        f"flashinfer_silu_and_mul: x: expected {expected}",
    )
    for name, x, expected in (
        ("dtype", torch.ones(3, 32, dtype=torch.int32), "dtype float32 or bfloat16 or float16, got int32"),
        ("rank", torch.ones(32), "rank 2, got shape (32,)"),
        ("columns", torch.ones(3, 24), "columns that are a multiple of 16, got 24"),
    )
]

BENCHES = [
    Bench(
        f"{name}-{shape[0]}x{shape[1]}",
        why,
        build=lambda g, shape=shape, dtype=dtype: arguments(g, shape, dtype),
        bytes=lambda a: nbytes(a["x"]) + a["x"].nbytes // 2,
        operations=lambda a: 4 * a["x"].numel(),
        devices=(device,),
    )
    for device, name, dtype, shape, why in (
        ("cuda", "bf16", torch.bfloat16, (8192, 28672), "far more than any cache holds"),
        ("cpu", "f32", torch.float32, (1024, 4096), "some milliseconds"),
    )
]
