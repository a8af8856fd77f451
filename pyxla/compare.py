"""Compares a result with the reference in float64, element by element."""

from __future__ import annotations

import torch

from pyxla.check import dtype_name


def compare(
    where: str, got: torch.Tensor, want: torch.Tensor, *, roundings: int = 16, peer_error: float | None = None
) -> float:
    """Raises AssertionError unless every element is right; returns the worst error as a share of what is allowed.

    An element may differ by one unit in the last place of its own value (a correctly rounded result differs by half of
    one) and by `roundings` float32 roundings of the largest value in its row, for what is accumulated in float32. If
    that is more than 1.5 times `peer_error`, the largest error of torch's own op, then the largest error may be no
    more than that (or one unit in the last place of the largest value, which a lucky peer does not take away).

    Args:
        where: first words of the message.
        got: the result, any dtype.
        want: the reference's result, float64 (integers and bools must be equal).
        roundings: float32 roundings of a row's largest value.
        peer_error: largest absolute error of a peer in the same dtype, or None.
    """
    assert got.shape == want.shape, f"{where}: shape: expected {tuple(want.shape)}, got {tuple(got.shape)}"
    if not got.is_floating_point():
        assert torch.equal(got, want.to(got.dtype)), (
            f"{where}: values: expected equal {dtype_name(got.dtype)}, got others"
        )
        return 0.0
    if got.numel() == 0:
        return 0.0
    wide, want = got.double(), want.double()
    # What the dtype cannot hold rounds to infinity in the reference too.
    want_special = want.to(got.dtype).double()
    finite = want_special.isfinite()
    same = (wide == want_special) | (wide.isnan() & want_special.isnan())
    assert bool(same[~finite].all()), (
        f"{where}: values: expected NaN and infinity where the reference has, {_first(~finite & ~same, wide, want)}"
    )
    if not bool(finite.any()):
        return 0.0

    magnitude = torch.where(finite, want.abs(), 0.0)
    row = magnitude.amax(dim=-1, keepdim=True) if want.dim() else magnitude
    unit, tiny = torch.finfo(got.dtype).eps, torch.finfo(got.dtype).smallest_normal
    limit = unit * magnitude.clamp(min=tiny) + roundings * torch.finfo(torch.float32).eps * row
    error = torch.where(finite, (wide - want).abs(), 0.0).nan_to_num(nan=torch.inf)
    wrong = error > limit
    assert not bool(wrong.any()), (
        f"{where}: values: {_first(wrong, wide, want)}; {int(wrong.sum())} of {got.numel()} differ"
    )
    if peer_error is not None:
        allowed = max(1.5 * peer_error, unit * magnitude.max().item())
        worst = error.max().item()
        assert worst <= allowed, (
            f"{where}: values: expected an error of at most {allowed:.3g} (1.5x torch's own), got {worst:.3g}"
        )
    return (error / limit.clamp(min=torch.finfo(torch.float64).tiny)).max().item()


def _first(mask: torch.Tensor, got: torch.Tensor, want: torch.Tensor) -> str:
    place = tuple(int(i) for i in mask.nonzero()[0]) if bool(mask.any()) else ()
    return (
        f"expected {want[place].item():.9g} at {place}, got {got[place].item():.9g}"
        if bool(mask.any())
        else "as it has"
    )
