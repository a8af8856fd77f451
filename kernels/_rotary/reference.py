"""Checks and reference shared by the ops that rotate heads by their positions."""

import torch

from pyxla import Check, accumulation_dtype


def check_angles(check: Check, x: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor) -> None:
    """Raises ArgumentError for positions or a table that do not fit x, [tokens, any, d]."""
    tokens, _, d = x.shape
    check.dtype("positions", positions, (torch.int32, torch.int64))
    check.shape("positions", positions, (tokens,), hint="one position per token")
    dtypes = (torch.float32,) if x.dtype == torch.float32 else (x.dtype, torch.float32)
    check.dtype("cos_sin_cache", cos_sin_cache, dtypes)
    check.rank("cos_sin_cache", cos_sin_cache, 2)
    rot_dim = cos_sin_cache.shape[1]
    fits = rot_dim % 2 == 0 and rot_dim <= d
    check.that(fits, "cos_sin_cache", f"an even last dimension of at most {d}", rot_dim)


def angles(
    check: Check, positions: torch.Tensor, x: torch.Tensor, cos_sin_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, [tokens, 1, rot_dim / 2]. A position out of range: NaN, or ArgumentError on CPU tensors."""
    last = cos_sin_cache.shape[0]
    wrong = (positions < 0) | (positions >= last)
    if positions.device.type == "cpu" and bool(wrong.any()):
        token = int(wrong.nonzero()[0])
        check.that(False, "positions", f"a position in [0, {last})", f"{int(positions[token])} at token {token}")
    rows = cos_sin_cache.to(accumulation_dtype(x.dtype))[positions.masked_fill(wrong, 0)]
    return rows.masked_fill(wrong[:, None], torch.nan)[:, None].chunk(2, dim=-1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool) -> torch.Tensor:
    """x with the first rot_dim elements of each head rotated."""
    rot_dim = 2 * cos.shape[-1]
    rotated = x[..., :rot_dim].to(cos.dtype)
    a, b = rotated.chunk(2, dim=-1) if is_neox else (rotated[..., ::2], rotated[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin
    rotated = torch.cat([a, b], dim=-1) if is_neox else torch.stack([a, b], dim=-1).flatten(-2)
    return torch.cat([rotated.to(x.dtype), x[..., rot_dim:]], dim=-1)
