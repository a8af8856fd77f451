"""Inputs of the gated activations, for their tests and benchmarks; each with its reason."""

from collections.abc import Callable

import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SHAPES = {
    "1x2": ((1, 2), "one element"),
    "3x10": ((3, 10), "odd d, shorter than a vector: one element per thread"),
    "2x3x128": ((2, 3, 128), "leading dimensions are flattened; rows of whole vectors"),
    "7x24008": ((7, 24008), "d is not a multiple of eight; pieces begin inside a row"),
    "0x64": ((0, 64), "no rows"),
    "2x0": ((2, 0), "rows without elements"),
    "16": ((16,), "rank 1: a single row without leading dimensions"),
}


def arguments(generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, **attributes) -> dict:
    """Gates near the bend and far out on both sides; the factors' magnitude differs by row, so a wrong half shows."""
    gate, up = (torch.randn((*shape[:-1], shape[-1] // 2), generator=generator) for _ in range(2))
    gate = 4 * gate
    if gate.shape[-1] > 3:
        gate[..., 0], gate[..., -1] = 50, -100
    if len(shape) > 1:
        up = up * torch.logspace(-2, 2, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return {"x": torch.cat([gate, up], dim=-1).to(dtype)} | attributes


def cases(peer: Callable, **attributes) -> list[Case]:
    """Each shape in each dtype, with these attributes of the op."""
    return [
        Case(
            f"{name}-{shape_name}",
            why,
            lambda g, shape=shape, dtype=dtype: arguments(g, shape, dtype, **attributes),
            peer=peer,
        )
        for name, dtype in DTYPES.items()
        for shape_name, (shape, why) in SHAPES.items()
    ]


def zeros(name: str, **attributes) -> Case:
    """A case at the bend of the activation: gates of 0.0 and -0.0."""
    x = torch.tensor([[0.0, -0.0, 1.0, 1.0]])
    return Case(name, "the bend itself, and -0.0", lambda g: {"x": x} | attributes)


def bad_inputs(op: str, **attributes) -> list[BadInput]:
    """Inputs that every gated activation rejects; `op` is the name in the messages."""
    refused = {
        "dtype": (torch.ones(2, 8, dtype=torch.int32), "dtype float32 or bfloat16 or float16, got int32"),
        "rank-0": (torch.tensor(1.0), "rank 1 or more, got shape ()"),
        "odd": (torch.ones(2, 7), "an even last dimension, got 7"),
    }
    return [
        BadInput(name, lambda g, x=x: {"x": x} | attributes, f"{op}: x: expected {message}")
        for name, (x, message) in refused.items()
    ]


def bench(
    name: str,
    shape: tuple[int, int],
    dtype: torch.dtype,
    why: str,
    *devices: str,
    peer: Callable,
    operations: int,
    **attributes,
) -> Bench:
    """A bench of rows; `operations` is the count for each element of the result."""
    return Bench(
        f"{name}-{shape[0]}x{shape[1]}",
        why,
        lambda g: arguments(g, shape, dtype, **attributes),
        bytes=lambda a: nbytes(a["x"]) * 3 // 2,
        operations=lambda a: operations * a["x"].numel() // 2,
        peer=peer,
        devices=devices,
    )
