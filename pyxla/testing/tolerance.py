"""Compares a result with the reference in float64, element by element."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["WorstElement", "compare", "worst_element"]


class WorstElement(NamedTuple):
    """The element whose error is the largest share of its tolerance; tuples compare by this share first.

    Attributes:
        share: its error as a share of the allowed error.
        error: its distance from the reference.
        allowed: the largest distance that is allowed.
    """

    share: float = 0.0
    error: float = 0.0
    allowed: float = 0.0


def compare(
    where: str, got: torch.Tensor, want: torch.Tensor, *, roundings: int = 16, peer: torch.Tensor | None = None
) -> float:
    """Like `worst_element`, but returns only the worst error as a share of the allowed error."""
    __tracebackhide__ = True  # pytest then shows the message and not this function
    return worst_element(where, got, want, roundings=roundings, peer=peer).share


def worst_element(
    where: str, got: torch.Tensor, want: torch.Tensor, *, roundings: int = 16, peer: torch.Tensor | None = None
) -> WorstElement:
    """Raises AssertionError unless every element is right; returns the worst one.

    An element may differ by one unit in the last place of its own value (a correctly rounded result differs by at most
    half a unit) plus `roundings` float32 roundings of the largest value in its row, for accumulation in float32.

    The error of a peer, torch's own op in the same dtype, sets a second limit: the root mean square error may be 1.5
    times the peer's, or one unit in the last place if that is more, as a peer may be exact by luck. Why not the largest
    error: that is one outlier, over forty seeds of one attention 0.7 to 1.9 times the peer's while the mean square was
    0.9 to 1.15 times.

    Args:
        where: first words of the message.
        got: the result, any dtype.
        want: the reference's result, float64 (integers and bools must be equal).
        roundings: float32 roundings of a row's largest value.
        peer: the peer's result. There is no such limit if it is None, or not finite where `want` is.
    """
    __tracebackhide__ = True
    assert got.shape == want.shape, f"{where}: shape: expected {tuple(want.shape)}, got {tuple(got.shape)}"
    if not got.is_floating_point():
        differs = got != want.to(got.dtype)
        assert not bool(differs.any()), f"{where}: values: {_first(differs, got, want)}"
        return WorstElement()
    if got.numel() == 0:
        return WorstElement()
    wide, want = got.double(), want.double()
    finite = _check_special_values(where, wide, want, got.dtype)
    if not bool(finite.any()):
        return WorstElement()

    magnitude = torch.where(finite, want.abs(), 0.0)
    row = magnitude.amax(dim=-1, keepdim=True) if want.dim() else magnitude
    limit = _unit(magnitude, got.dtype) + roundings * torch.finfo(torch.float32).eps * row
    error = torch.where(finite, (wide - want).abs(), 0.0).nan_to_num(nan=torch.inf)
    wrong = error > limit
    assert not bool(wrong.any()), f"{where}: values: {_first(wrong, wide, want)}"
    if peer is not None:
        peer_error = torch.where(finite, (peer.double() - want).abs(), 0.0)
        _check_mean_error(where, error, peer_error, _unit(magnitude, got.dtype))
    share = error / limit.clamp(min=torch.finfo(torch.float64).tiny)
    place = int(share.argmax())
    return WorstElement(*(values.reshape(-1)[place].item() for values in (share, error, limit)))


def _check_special_values(where: str, got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Infinities and NaN must be where the reference has them; returns where it is finite.

    A value that the dtype cannot hold rounds to infinity in the reference too.
    """
    __tracebackhide__ = True
    rounded = want.to(dtype).double()
    finite = rounded.isfinite()
    same = (got == rounded) | (got.isnan() & rounded.isnan())
    wrong = ~finite & ~same
    assert not bool(wrong.any()), f"{where}: values: {_first(wrong, got, want)}"
    return finite


def _check_mean_error(where: str, error: torch.Tensor, peer_error: torch.Tensor, unit: torch.Tensor) -> None:
    """The root mean square of the error is at most 1.5 times the peer's, or one unit in the last place."""
    __tracebackhide__ = True
    allowed = max(1.5 * _root_mean_square(peer_error), _root_mean_square(unit))
    ours = _root_mean_square(error)
    # `not >`: with a NaN in the peer's result there is no limit.
    assert not ours > allowed, (
        f"{where}: values: expected a root mean square error of at most {allowed:.3g} (1.5x torch's own), "
        f"got {ours:.3g}"
    )


def _root_mean_square(error: torch.Tensor) -> float:
    return error.square().mean().sqrt().item()


def _unit(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One unit in the last place: the distance between the dtype's numbers at this magnitude (float64)."""
    info = torch.finfo(dtype)
    magnitude = magnitude.clamp(min=info.smallest_normal)
    # magnitude = mantissa * 2^exponent, the mantissa in [0.5, 1): the quotient is the power of two, exactly.
    mantissa, _ = torch.frexp(magnitude)
    return magnitude / mantissa * (info.eps / 2)


def _first(wrong: torch.Tensor, got: torch.Tensor, want: torch.Tensor) -> str:
    """The first wrong element and how many there are."""
    place = tuple(int(i) for i in wrong.nonzero()[0])
    return (
        f"expected {want[place].item():.9g} at {place}, got {got[place].item():.9g}; "
        f"{int(wrong.sum())} of {wrong.numel()} differ"
    )
