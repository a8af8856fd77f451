"""Assertions for your own tests: a custom call is there, works in place, is compiled once, runs on the device.

    def test_step():
        seen = pyxla.inspect(step, x, cache)
        pyxla.assert_custom_calls(seen, "paged_attention", 32)
        pyxla.assert_no_copies(seen)

    with pyxla.assert_no_recompilation(), pyxla.assert_no_fallback():
        step(x, cache)
        torch_xla.sync()

Each raises an AssertionError in the form of pyxla's errors, which says what was found instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyxla.errors import ArgumentError, mismatch
from pyxla.hlo.dump import compilations
from pyxla.inspection.inspection import Inspection
from pyxla.torch_xla_patches.fallback_counters import FallbackCounter


def assert_custom_calls(seen: Inspection, op: str, count: int = 1) -> None:
    """Asserts that the optimised modules contain exactly this many custom calls of an op.

    Args:
        seen: from `pyxla.inspect(fn, ...)` or `pyxla.inspecting()`.
        op: name of the op, "rms_norm", for calls of all its implementations; "rms_norm.triton" for calls of that one;
            or a whole target, "xla_gpu_rms_norm".
        count: how many, in all modules together.

    Raises:
        AssertionError: more or fewer; the message says how many there were before XLA optimised.
    """
    _require_inspection("assert_custom_calls", seen)
    found = len([call for call in seen.calls() if call.target in _targets(op)])
    if found == count:
        return
    before = sum(n for module in seen.modules for target, n in module.calls_before.items() if target in _targets(op))
    others = sorted({call.target for call in seen.calls()} - _targets(op))
    if before > found:
        hint = f"there were {before} before XLA optimised: it merges equal calls and drops those that nobody reads"
    else:
        hint = f"the modules hold {', '.join(others) or 'no other custom call'}; print the inspection to see them"
    raise AssertionError(_explained(mismatch("assert_custom_calls", op, _counted(count, "custom call"), found), hint))


def assert_no_copies(seen: Inspection, op: str | None = None) -> None:
    """Asserts that XLA copies no operand that a custom call updates in place.

    Args:
        seen: from `pyxla.inspect(fn, ...)` or `pyxla.inspecting()`.
        op: check only this op's calls.

    Raises:
        AssertionError: such an operand is copied; or no call works in place, so that there is nothing to check.
    """
    _require_inspection("assert_no_copies", seen)
    what = op or "calls"
    in_place = {
        (module.name, call.name)
        for module in seen.modules
        for call in module.calls
        if call.aliases and (op is None or call.target in _targets(op))
    }
    if not in_place:
        message = mismatch("assert_no_copies", what, "a custom call that works in place", "none")
        raise AssertionError(
            _explained(message, "print the inspection to see the calls; declare what an op updates in `mutates`")
        )
    copies = [c for m in seen.modules for c in m.copies if c.in_place and (m.name, c.call) in in_place]
    if copies:
        first = copies[0]
        more = f" and {len(copies) - 1} more" if len(copies) > 1 else ""
        got = f"{first.name} {first.shape} ({first.place} of {first.call}){more}"
        message = mismatch("assert_no_copies", what, "no copy of what is updated in place", got)
        raise AssertionError(_explained(message, first.reason))


@contextmanager
def assert_no_recompilation() -> Iterator[None]:
    """Asserts that XLA compiles nothing inside the block. What is pending when the block ends is run and counts too.

    Raises:
        AssertionError: XLA compiled a graph.
    """
    from pyxla.sync import sync

    sync()
    before = compilations()
    yield
    sync()
    got = compilations() - before
    if got:
        raise AssertionError(
            _explained(
                mismatch("assert_no_recompilation", "block", "no compilation", got),
                "a shape, a dtype, an attribute or the order of operations has changed; if the block has not run "
                "before, run it once before you check it",
            )
        )


@contextmanager
def assert_no_fallback() -> Iterator[None]:
    """Asserts that no operation inside the block falls back to torch's CPU kernels, with copies to the host and back.

    Raises:
        AssertionError: some operations did; the message names them.
    """
    fallbacks = FallbackCounter()
    try:
        yield
    finally:
        fallbacks.stop()
    ran = fallbacks.counts()
    if ran:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(ran.items()))
        raise AssertionError(
            _explained(
                mismatch("assert_no_fallback", "block", "every operation on XLA", listed),
                "torch_xla has no XLA lowering of these; write the step without them, or write an op for it",
            )
        )


def _targets(op: str) -> set[str]:
    from pyxla.packages import NAMESPACE
    from pyxla.torch_ops.custom_op import targets_of

    return {op, f"{NAMESPACE}_{op}"} | targets_of(op)


def _require_inspection(where: str, seen: object) -> None:
    if not isinstance(seen, Inspection):
        raise ArgumentError(
            mismatch(where, "seen", "an Inspection", type(seen).__name__), "seen = pyxla.inspect(fn, *args)"
        )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _explained(message: str, hint: str) -> str:
    return f"{message}\n\nhint: {hint}"
