"""Inputs of scaled, for its test and its benchmark; each with its reason."""

import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

# replace: the sizes at which this kernel could go wrong
SHAPES = {
    "scalar": ((), "rank 0: no dimension to count"),
    "empty": ((0, 3), "no element: no thread may start"),
    "3x5": ((3, 5), "fewer elements than one piece of the parallel loop"),
    "7x40001": ((7, 40001), "several pieces of the parallel loop, the last one odd"),
}
GRID = [("f32", torch.float32, shape) for shape in SHAPES] + [
    (name, dtype, shape)
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16))
    for shape in ("3x5", "7x40001")
]
# All different, and none a default, so that a lost or swapped one shows.
ATTRIBUTES = {"scale": 1.75}


def arguments(generator: torch.Generator, shape: tuple[int, ...] = (3, 5), dtype: torch.dtype = torch.float32) -> dict:
    """All elements are between 0.5 and 1.5: nothing cancels, so every operand shows in every dtype."""

    def tensor() -> torch.Tensor:
        return (torch.rand(shape, generator=generator) + 0.5).to(dtype)

    return {"x": tensor(), **ATTRIBUTES}


CASES = [
    Case(
        name=f"{dtype_name}-{shape_name}",
        why=SHAPES[shape_name][1],
        build=lambda g, shape=SHAPES[shape_name][0], dtype=dtype: arguments(g, shape, dtype),
    )
    for dtype_name, dtype, shape_name in GRID
] + [
    Case(
        "f32-other-attributes",
        "values of another sign or size than in the other cases",
        lambda g: arguments(g) | {"scale": -1.5},
    ),
]

BAD_INPUTS = [
    BadInput(
        "x-dtype",
        lambda g: arguments(g) | {"x": torch.ones(3, 5, dtype=torch.int32)},
        "scaled: x: expected dtype float32 or bfloat16 or float16, got int32",
    ),
]

BENCHES = [
    Bench(
        f"{dtype_name}-{shape[0]}x{shape[1]}",
        why,
        build=lambda g, shape=shape, dtype=dtype: arguments(g, shape, dtype),
        bytes=lambda a: nbytes(*(v for v in a.values() if torch.is_tensor(v))) + 1 * a["x"].nbytes,
        # replace: the fewest operations per element; and add a peer, if torch computes the same
        operations=lambda a: 2 * a["x"].numel(),
        devices=(device,),
    )
    for device, dtype_name, dtype, shape, why in (
        ("cuda", "bf16", torch.bfloat16, (16384, 8192), "far more than any cache holds"),
        ("cpu", "f32", torch.float32, (1024, 4096), "some milliseconds"),
    )
]
