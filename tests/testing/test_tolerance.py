"""The comparison used by every op's test: what it must reject, and what it must accept."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyxla.testing.tolerance import WorstElement, compare, worst_element

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def large(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A correctly rounded result, and the reference in float64; all mantissas occur, no value is near 0."""
    generator = torch.Generator().manual_seed(0)
    want = torch.randn(512, 512, dtype=torch.float64, generator=generator)
    want += want.sign()
    return want.to(dtype), want


def moved(got: torch.Tensor, place: tuple[int, ...], units: int) -> torch.Tensor:
    """The tensor with one element moved by so many units in the last place, away from zero."""
    changed = got.clone()
    changed.view(SIZES[got.dtype])[place] += units
    return changed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("units", [-2, 2])
@pytest.mark.parametrize("place", [(0, 0), (511, 511), (200, 37)])
def test_one_element_off_by_two_units_fails(dtype, units, place):
    got, want = large(dtype)
    with pytest.raises(AssertionError, match=r"here: values: expected .* at \(\d+, \d+\), got .*; 1 of 262144 differ"):
        compare("here", moved(got, place, units), want, roundings=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_units_fail_at_every_mantissa(dtype):
    """A limit relative to the value, not to its unit, would accept two units in the upper half of a binade."""
    for value in (1.0, 1.25, 1.5, 1.75, 2 - 2 * torch.finfo(dtype).eps):
        want = torch.tensor([value], dtype=torch.float64)
        with pytest.raises(AssertionError, match="1 of 1 differ"):
            compare("here", moved(want.to(dtype), (0,), 2), want, roundings=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_correct_rounding_passes(dtype):
    got, want = large(dtype)
    worst = compare("here", got, want, roundings=0)
    # torch rounds float64 to the narrow dtypes through float32.
    assert 0.49 < worst < 0.501


def test_worst_element_is_the_one_nearest_to_its_limit():
    """Not the element with the largest error: a unit in the last place is 2^-8 just below 1, and 4 just below 1024."""
    want = torch.tensor([1.0 - 2**-9, 1024.0 - 0.25], dtype=torch.float64)
    worst = worst_element("here", torch.tensor([1.0, 1024.0], dtype=torch.bfloat16), want, roundings=0)
    assert worst == (0.5, 2**-9, 2**-8) == WorstElement(share=0.5, error=2**-9, allowed=2**-8)
    assert compare("here", torch.tensor([1.0, 1024.0], dtype=torch.bfloat16), want, roundings=0) == 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_two_units_fail_with_the_roundings_of_an_op_test(dtype):
    """`roundings` is for errors of float32 sums: in a narrower dtype it must not hide a wrong element."""
    got, want = large(dtype)
    with pytest.raises(AssertionError, match="1 of 262144 differ"):
        compare("here", moved(got, (200, 37), 2), want)


def test_roundings_count_for_the_largest_value_of_the_row_alone():
    want = torch.tensor([[1000.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    off = torch.tensor([[0.0, 1e-3], [0.0, 0.0]])
    compare("here", want.float() + off, want, roundings=16)
    with pytest.raises(AssertionError, match=r"at \(0, 1\)"):
        compare("here", want.float() + off, want, roundings=4)
    with pytest.raises(AssertionError, match=r"at \(1, 1\)"):
        compare("here", want.float() + off.flip(0), want, roundings=16)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.inf, 1.0),
        (-math.inf, math.inf),
        (math.inf, math.nan),
        (math.nan, math.inf),
        (1e30, math.inf),
        (math.inf, 65504.0),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_infinity_must_stand_where_the_reference_has_them(dtype, got, want):
    if dtype == torch.float16 and got == 1e30:
        got = 65504.0
    results = torch.ones(3, 5, dtype=dtype)
    results[1, 2] = got
    wanted = torch.ones(3, 5, dtype=torch.float64)
    wanted[1, 2] = want
    with pytest.raises(AssertionError, match=r"at \(1, 2\), got .*; 1 of 15 differ"):
        compare("here", results, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_nan_and_infinity_pass(dtype):
    want = torch.tensor([math.nan, math.inf, -math.inf, 1.0], dtype=torch.float64)
    assert compare("here", want.to(dtype), want) == 0.0
    assert compare("here", want[:3].to(dtype), want[:3]) == 0.0


def test_overflow_of_the_dtype_is_an_infinity_in_the_reference():
    want = torch.tensor([1e6, 1.0], dtype=torch.float64)
    compare("here", want.half(), want)
    with pytest.raises(AssertionError, match=r"expected 1000000 at \(0,\), got 65504"):
        compare("here", torch.tensor([65504.0, 1.0], dtype=torch.float16), want)


@pytest.mark.parametrize(
    ("got", "want"), [((3, 2), (2, 3)), ((6,), (2, 3)), ((), (1,)), ((0, 3), (3, 0)), ((2,), (3,))]
)
def test_shapes_must_be_equal(got, want):
    with pytest.raises(AssertionError, match=r"here: shape: expected \(.*\), got \("):
        compare("here", torch.ones(got), torch.ones(want, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 5)])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int32, torch.bool], ids=str)
def test_empty_tensors_pass(dtype, shape):
    assert compare("here", torch.ones(shape, dtype=dtype), torch.ones(shape, dtype=torch.float64)) == 0.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rank_0(dtype):
    one = torch.tensor(1.0, dtype=torch.float64)
    assert compare("here", one.to(dtype), one) == 0.0
    with pytest.raises(AssertionError, match=r"expected 1 at \(\), got 1.5; 1 of 1 differ"):
        compare("here", torch.tensor(1.5, dtype=dtype), one)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool], ids=str)
def test_integers_and_bools_must_be_equal(dtype):
    want = torch.tensor([0, 1, 1])
    assert compare("here", want.to(dtype), want.to(dtype)) == 0.0
    with pytest.raises(AssertionError, match=r"here: values: expected 1 at \(2,\), got 0; 1 of 3 differ"):
        compare("here", torch.tensor([0, 1, 0]).to(dtype), want.to(dtype))


def test_error_above_that_of_the_peer_fails():
    """The error is within the roundings, so that only the comparison with the peer's error can fail."""
    got, want = large(torch.float32)
    worse = (got.double() + 12 * torch.finfo(torch.float32).eps).float()
    error = (worse.double() - want).square().mean().sqrt().item()
    compare("here", worse, want)
    compare("here", worse, want, peer=want + error / 1.49)
    compare("here", worse, want, peer=torch.full_like(want, math.nan))
    with pytest.raises(AssertionError, match=r"a root mean square error of at most .* \(1.5x torch's own\), got"):
        compare("here", worse, want, peer=want + error / 1.51)


def test_one_outlier_does_not_fail_by_the_peer():
    """The largest error of a few thousand elements does not measure an op: ours may be many times torch's."""
    got, want = large(torch.float32)
    eps = torch.finfo(torch.float32).eps
    got.view(-1)[0] += 8 * eps
    compare("here", got, want, peer=want + eps)


def test_peer_without_error_leaves_one_unit():
    got, want = large(torch.float32)
    compare("here", got, want, peer=want)
    with pytest.raises(AssertionError, match=r"1\.5x torch's own"):
        compare("here", got * (1 + 1e-6), want, peer=want)


NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(st.sampled_from(DTYPES), st.lists(NUMBERS, min_size=1, max_size=20), st.sampled_from([0, 16]))
def test_any_correctly_rounded_result_passes(dtype, values, roundings):
    want = torch.tensor(values, dtype=torch.float64)
    got = want.to(dtype)
    assert 0.0 <= compare("here", got, want, roundings=roundings) <= 0.51
    compare("here", got, want, roundings=roundings, peer=got)


@given(st.sampled_from(DTYPES), st.integers(0, 19), st.integers(3, 100), st.data())
def test_any_element_that_is_moved_fails(dtype, place, units, data):
    limits = {"min_value": 2.0**-10, "max_value": 2.0**10}
    values = data.draw(st.lists(st.floats(**limits), min_size=20, max_size=20))
    want = torch.tensor(values, dtype=torch.float64)
    with pytest.raises(AssertionError, match="1 of 20 differ"):
        compare("here", moved(want.to(dtype), (place,), units), want, roundings=0)
