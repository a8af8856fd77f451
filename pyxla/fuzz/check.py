"""What must hold for one input: numbers as the reference's, or an error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from pyxla.errors import ArgumentError, PyxlaError
from pyxla.fuzz.inputs import Input
from pyxla.fuzz.variation import unchanged
from pyxla.testing import Case, oracle
from pyxla.testing.device_memory import call_raw
from pyxla.testing.direct_call import in_order, without_data
from pyxla.testing.output_checks import check_unchanged, output_names, same_bits
from pyxla.testing.tolerance import worst_element
from pyxla.torch_ops.custom_op import CustomOp

# Below it values are zero here: a factor that is denormal in float32 has few digits.
_SMALLEST = torch.finfo(torch.float32).smallest_normal * 2**24
_LONG_ROW = 16
# How often an operand is moved: a few elements may happen to move together.
_DRAWS = 4
RIGHT, REFUSED, REFUSED_BY_DATA = "right", "refused", "refused by its data"


class Outcome(NamedTuple):
    """What came of an input.

    Attributes:
        kind: RIGHT, REFUSED or REFUSED_BY_DATA if all is as it must be; otherwise what is wrong, in a few words.
        problem: the whole of it, or "".
    """

    kind: str
    problem: str = ""


def check_input(op: CustomOp, drawn: Input, platform: str) -> Outcome:
    """Calls the op's handler raw, and compares.

    Args:
        op: the op.
        drawn: the input.
        platform: "Host" or "CUDA".
    """
    arguments = drawn.arguments()
    try:
        inferred = op.infer_results(without_data(in_order(op, arguments)))
    except ArgumentError as error:
        return _refused(op, drawn, arguments, platform, str(error))
    except Exception as error:
        return Outcome("the fake function failed", f"expected an ArgumentError, got {_text(error)}")
    try:
        want = oracle(op, arguments)
    except ArgumentError as error:
        return _refused_by_data(op, arguments, platform, error)
    except Exception as error:
        return Outcome("the reference failed", f"expected an ArgumentError, got {_text(error)}")
    # Without them a call infers them twice; on CUDA it also needs the size of the workspace.
    results = [(result.shape, result.dtype) for result in inferred] if platform == "Host" else None
    try:
        after, got = call_raw(op, arguments, platform, results=results)
    except PyxlaError as error:
        return Outcome("a valid input was refused", _text(error))
    try:
        check_unchanged(op, arguments, after)
    except AssertionError as error:
        return Outcome("an operand was changed", str(error))
    problem = _wrong_numbers(op, drawn.case, arguments, got, want, "CUDA" if platform == "CUDA" else "CPU")
    if problem is not None:
        return Outcome("wrong numbers", problem)
    if drawn.case.repeatable and not all(map(same_bits, got, call_raw(op, arguments, platform, results=results)[1])):
        return Outcome("other bits", "the same call returned other bits")
    return Outcome(RIGHT)


def _wrong_numbers(
    op: CustomOp, case: Case, arguments: dict[str, Any], got: tuple, want: tuple, device: str
) -> str | None:
    """What is wrong; None if only what float32 itself cannot do."""
    try:
        _compare(op, case, got, want, device)
        return None
    except AssertionError:
        narrow = oracle(op, arguments, torch.float32)
    try:
        _compare(op, case, got, want, device, narrow)
    except AssertionError as error:
        return None if _float32_is_no_nearer(op, case, arguments, got, want, narrow) else str(error)
    return None


def _compare(op: CustomOp, case: Case, got: tuple, want: tuple, device: str, narrow: tuple | None = None) -> None:
    """By the rule of the tests, except that float32's own limits are no error.

    Where a value is that small, it may as well be zero. Where the reference is infinite or NaN, either will
    do; where it is so in float32 alone (`narrow`), or in float64 alone, it says nothing. float8_e4m3fn has no infinity:
    a larger value is the largest.
    """
    for index, (name, one, expected) in enumerate(zip(output_names(op), got, want, strict=True)):
        if one.is_floating_point():
            if one.dtype == torch.float8_e4m3fn:
                expected = expected.clamp(-448, 448)
            wide = one.double()
            # A sum is finite only if all its terms are.
            if not (wide.sum() + expected.sum()).isfinite():
                special = _special(expected, one.dtype)
                skipped = special & _special(one, one.dtype)
                if narrow is not None:
                    skipped |= special != _special(narrow[index], one.dtype)
                one, expected = _zero(one, skipped), _zero(expected, skipped)
            small = (wide.abs() < _SMALLEST) & (expected.abs() < _SMALLEST)
            if small.any():
                one, expected = _zero(one, small), _zero(expected, small)
        worst_element(f"{op.name}: {name}", one, expected, roundings=case.roundings_of(one, device))


def _zero(tensor: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    return tensor.double().masked_fill(where, 0).to(tensor.dtype)


def _special(result: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Which elements are infinite or NaN once they are rounded."""
    return ~result.to(dtype).double().isfinite()


def _float32_is_no_nearer(
    op: CustomOp, case: Case, arguments: dict[str, Any], got: tuple, want: tuple, narrow: tuple
) -> bool:
    """Whether another way errs as much, so that the input is hard: torch's own op in the same dtype, the reference in
    float32 (`narrow`), or the reference with an operand whose elements are one rounding of float32 larger or smaller,
    at random (terms of a sum that cancel; softmax of large scores, which all the same factor would not change)."""
    others = [narrow]
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            for seed in range(_DRAWS):
                moved = _moved(value.double(), torch.finfo(torch.float32).eps, seed)
                with contextlib.suppress(ArgumentError):  # an operand that is only right as it is
                    others.append(oracle(op, arguments | {name: moved}))
    others += _peer_results(op, case, arguments, want)
    return all(map(_no_farther, got, zip(*others, strict=True), want))


def _moved(value: torch.Tensor, eps: float, seed: int) -> torch.Tensor:
    """Each element larger or smaller by `eps` of it, at random."""
    signs = torch.randint(0, 2, value.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return (value.double() * (1 + signs * eps)).to(value.dtype)


def _peer_results(
    op: CustomOp, case: Case, arguments: dict[str, Any], want: tuple
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Results with the peer's errors: for these arguments, and for others that are a rounding of their dtype away, as
    a peer may be right by luck."""
    if case.peer is None:
        return
    for seed in range(-1, _DRAWS):
        drawn = {
            n: _moved(v, torch.finfo(v.dtype).eps, seed)
            if seed >= 0 and isinstance(v, torch.Tensor) and v.is_floating_point() and v.itemsize > 1
            else v
            for n, v in arguments.items()
        }
        copies = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in drawn.items()}
        try:
            exact = want if seed < 0 else oracle(op, drawn)
            results = case.peer(**copies)
        except Exception:  # the peer takes less than the op, or an operand is only right as it is
            return
        # A peer need not work in place.
        names = [argument.name for argument in op.schema.mutated]
        mutated = [e if same_bits(copies[n], drawn[n]) else copies[n] for n, e in zip(names, exact, strict=False)]
        results = (*mutated, *(results if isinstance(results, tuple) else (results,)))
        if [result.shape for result in results] == [result.shape for result in want]:
            yield tuple(w + (r.double() - e) for r, e, w in zip(results, exact, want, strict=True))


def _no_farther(got: torch.Tensor, others: Sequence[torch.Tensor], want: torch.Tensor) -> bool:
    """Whether no row's largest error is more than four times that of the others, nor its second largest, and so on; and
    an element is infinite or NaN only where the reference or one of the others is. Short rows count as one: a few
    elements are right by luck."""
    if not got.is_floating_point():
        return torch.equal(got, want.to(got.dtype))
    ours, theirs = _special(got, got.dtype), torch.stack([_special(other, got.dtype) for other in others]).any(0)
    infinite = _special(want, got.dtype)
    if bool((infinite & ~ours | ours & ~infinite & ~theirs).any()):
        return False
    is_short = not got.dim() or got.shape[-1] < _LONG_ROW
    got, want, *others = (tensor.reshape(-1) if is_short else tensor for tensor in (got, want, *others))
    if not got.numel():
        return True
    finite = want.isfinite() & got.double().isfinite()
    error, *errors = (_sorted_errors(tensor, want, finite) for tensor in (got, *others))
    unit = torch.finfo(got.dtype).eps * torch.where(finite, want.double().abs(), 0.0).amax(-1, keepdim=True)
    return bool((error <= 4 * torch.stack(errors).amax(0) + unit).all())


def _sorted_errors(tensor: torch.Tensor, want: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    """Of each row, the largest first: an element that is hard to compute excuses no other one."""
    error = (tensor.double() - want.double()).abs()
    return torch.where(finite & error.isfinite(), error, 0.0).sort(-1, descending=True).values


def _refused(op: CustomOp, drawn: Input, arguments: dict[str, Any], platform: str, message: str) -> Outcome:
    """The handler gets the arguments too, with the results of the case: it may take them, but must not crash."""
    if not message.startswith(f"{op.name.partition('.')[0]}: "):
        return Outcome("an unclear error", f"expected `{op.name}: argument: expected X, got Y`, got {message}")
    if platform == "CUDA":
        return Outcome(REFUSED)
    try:
        results = op.infer_results(without_data(in_order(op, unchanged(drawn.case, drawn.variation.seed))))
    except ArgumentError:  # an implementation that does not take the case
        return Outcome(REFUSED)
    try:
        call_raw(op, arguments, platform, results=[(result.shape, result.dtype) for result in results])
    except PyxlaError:
        pass
    except Exception as error:
        return Outcome("the handler's call failed", _text(error))
    return Outcome(REFUSED)


def _refused_by_data(op: CustomOp, arguments: dict[str, Any], platform: str, refusal: Exception) -> Outcome:
    """On CUDA a handler cannot see the data; the results are NaN, or left as they were."""
    try:
        call_raw(op, arguments, platform)
    except PyxlaError:
        return Outcome(REFUSED_BY_DATA)
    if platform == "CUDA":
        return Outcome(REFUSED_BY_DATA)
    return Outcome("an invalid input was taken", f"expected an error of the handler: {refusal}")


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def limit_threads() -> None:
    """One thread for torch: with more, a child of fork may wait for one that it does not have."""
    torch.set_num_threads(1)
