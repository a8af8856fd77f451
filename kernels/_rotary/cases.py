"""Positions, angles and bad inputs for the tests and benchmarks of the ops that rotate heads."""

from collections.abc import Callable

import torch

from pyxla.testing import BadInput


def angle_table(max_position: int, rot_dim: int) -> torch.Tensor:
    """A cos_sin_cache as models have it, float32."""
    frequency = 10000.0 ** (-torch.arange(0, rot_dim, 2, dtype=torch.float64) / max(rot_dim, 1))
    angle = torch.arange(max_position, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=-1).float()


def drawn_positions(generator: torch.Generator, tokens: int, max_position: int, dtype: torch.dtype) -> torch.Tensor:
    """Random positions that include the first and the last row of the table."""
    drawn = torch.randint(0, max_position, (tokens,), generator=generator)
    drawn[:1], drawn[-1:] = max_position - 1, 0
    return drawn.to(dtype)


def torch_rotated(x: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, is_neox: bool) -> torch.Tensor:
    """The rotation by torch's own ops in the same dtype, where rot_dim is d."""
    cos, sin = (half.to(x.dtype)[:, None] for half in cos_sin_cache[positions].chunk(2, dim=-1))
    a, b = x.chunk(2, dim=-1) if is_neox else (x[..., ::2], x[..., 1::2])
    pair = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat(pair, dim=-1) if is_neox else torch.stack(pair, dim=-1).flatten(-2)


def bad_angles(op: str, changed: Callable[..., dict]) -> list[BadInput]:
    """Positions and tables that an op rejects.

    Args:
        op: the op's name.
        changed: returns the op's good arguments with some replaced: float32, 3 tokens, heads of 8, 10 positions.
    """
    return [
        BadInput(
            "positions-dtype",
            lambda g: changed(g, positions=torch.zeros(3)),
            f"{op}: positions: expected dtype int32 or int64, got float32",
        ),
        BadInput(
            "positions-shape",
            lambda g: changed(g, positions=torch.zeros(2, dtype=torch.int64)),
            f"{op}: positions: expected shape (3,), got (2,)",
        ),
        BadInput(
            "table-dtype",
            lambda g: changed(g, cos_sin_cache=torch.ones(10, 8, dtype=torch.bfloat16)),
            f"{op}: cos_sin_cache: expected dtype float32, got bfloat16",
        ),
        BadInput(
            "table-rank",
            lambda g: changed(g, cos_sin_cache=torch.ones(10)),
            f"{op}: cos_sin_cache: expected rank 2, got shape (10,)",
        ),
        BadInput(
            "table-odd",
            lambda g: changed(g, cos_sin_cache=torch.ones(10, 7)),
            f"{op}: cos_sin_cache: expected an even last dimension of at most 8, got 7",
        ),
        BadInput(
            "table-too-wide",
            lambda g: changed(g, cos_sin_cache=torch.ones(10, 10)),
            f"{op}: cos_sin_cache: expected an even last dimension of at most 8, got 10",
        ),
        BadInput(
            "position-too-large",
            lambda g: changed(g, positions=torch.tensor([0, 9, 10])),
            f"{op}: positions: expected a position in [0, 10), got 10 at token 2",
            at_run_time=True,
        ),
        BadInput(
            "position-negative",
            lambda g: changed(g, positions=torch.tensor([0, -1, 1], dtype=torch.int32)),
            f"{op}: positions: expected a position in [0, 10), got -1 at token 1",
            at_run_time=True,
        ),
    ]
