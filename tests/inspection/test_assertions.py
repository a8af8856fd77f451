"""`pyxla.assert_*`: each passes where it should, fails where it should, and says what it found."""

import re

import pytest
import torch
import torch_xla

import pyxla
from tests.probe import probe_ops

pytestmark = pytest.mark.usefixtures("probe_library")
DEVICE = torch_xla.device()
FORM = re.compile(r"assert_\w+: [\w ]+: expected .+, got .+\n\nhint: .+", re.DOTALL)


def tensor(*shape: int) -> torch.Tensor:
    return torch.ones(shape).to(DEVICE)


def add(x, y):
    return probe_ops.probe_optionals(y, x)


def message(call) -> str:
    """The message of the AssertionError that a call raises, in the usual form."""
    with pytest.raises(AssertionError) as caught:
        call()
    text = str(caught.value)
    assert FORM.fullmatch(text), text
    return text


def test_custom_calls():
    x = tensor(8)
    seen = pyxla.inspect(lambda: add(add(x, x), x * 2))
    pyxla.assert_custom_calls(seen, "probe_optionals", 2)
    pyxla.assert_custom_calls(seen, "xla_gpu_probe_optionals", count=2)
    pyxla.assert_custom_calls(seen, "probe_accumulate", 0)
    text = message(lambda: pyxla.assert_custom_calls(seen, "probe_optionals"))
    assert text.startswith("assert_custom_calls: probe_optionals: expected 1 custom call, got 2\n")
    text = message(lambda: pyxla.assert_custom_calls(seen, "probe_accumulate"))
    assert "expected 1 custom call, got 0" in text and "the modules hold xla_gpu_probe_optionals" in text


def test_custom_call_that_xla_merged_with_another():
    x = tensor(9)
    seen = pyxla.inspect(lambda: (add(x, x), add(x, x)))
    text = message(lambda: pyxla.assert_custom_calls(seen, "probe_optionals", 2))
    assert "expected 2 custom calls, got 1" in text
    assert "hint: there were 2 before XLA optimised: it merges equal calls" in text


@pytest.mark.parametrize("compiled", [False, True])
def test_no_copies(compiled):
    cache, update = tensor(100), tensor(100)

    def step(cache):
        return probe_ops.probe_accumulate(cache, update)

    fn = torch.compile(step, backend="openxla") if compiled else step
    seen = pyxla.inspect(fn, cache)
    pyxla.assert_no_copies(seen)
    pyxla.assert_no_copies(seen, "probe_accumulate")


def test_copy_of_what_is_updated_in_place():
    cache, update = tensor(101), tensor(101)

    def step():
        old = cache * 2
        probe_ops.probe_accumulate(cache, update)
        return old

    text = message(lambda: pyxla.assert_no_copies(pyxla.inspect(step)))
    assert text.startswith("assert_no_copies: calls: expected no copy of what is updated in place, got copy")
    assert "f32[101]{0} (operand 0 of custom-call" in text and "hint: the old values of argument" in text


def test_copy_of_something_else_is_not_meant():
    cache, update, x = tensor(7, 6), tensor(6, 7), tensor(6, 7)

    def step():
        return probe_ops.probe_accumulate(cache, update.t()), add(x.t(), x.t())

    seen = pyxla.inspect(step)
    assert {(c.place, c.in_place) for m in seen.modules for c in m.copies} >= {
        ("operand 1", False),
        ("operand 0", False),
    }
    pyxla.assert_no_copies(seen)


def test_no_copies_needs_something_to_look_at():
    x = tensor(10)
    seen = pyxla.inspect(lambda: add(x, x))
    assert "expected a custom call that works in place, got none" in message(lambda: pyxla.assert_no_copies(seen))
    text = message(lambda: pyxla.assert_no_copies(seen, "probe_increment"))
    assert text.startswith("assert_no_copies: probe_increment: ")


@pytest.mark.parametrize("check", [pyxla.assert_custom_calls, pyxla.assert_no_copies])
def test_only_of_an_inspection(check):
    with pytest.raises(pyxla.ArgumentError, match=r"assert_\w+: seen: expected an Inspection, got function"):
        check(lambda: None, "probe_optionals")


def run_block(manager, work) -> None:
    with manager:
        work()


def test_no_recompilation():
    x = tensor(11)

    def step():
        return add(x, x) / 3

    text = message(lambda: run_block(pyxla.assert_no_recompilation(), lambda: step().cpu()))
    assert text.startswith("assert_no_recompilation: block: expected no compilation, got 1\n")
    run_block(pyxla.assert_no_recompilation(), lambda: step().cpu())


def test_recompilation_that_is_still_pending():
    x, kept = tensor(12), []
    assert "got 1" in message(lambda: run_block(pyxla.assert_no_recompilation(), lambda: kept.append(add(x, x) / 5)))


def test_what_was_pending_before_is_not_counted():
    pending = tensor(13).cosh()
    run_block(pyxla.assert_no_recompilation(), lambda: None)
    assert pending.cpu().shape == (13,)


def test_looking_is_no_recompilation():
    x = tensor(14)
    add(x, x).cpu()
    run_block(pyxla.assert_no_recompilation(), lambda: pyxla.inspect(lambda: add(x, x)))


@pytest.mark.parametrize("check", [pyxla.assert_no_recompilation, pyxla.assert_no_fallback])
def test_exception_of_the_block_goes_through(check):
    def work():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_block(check(), work)


def falls_back(x):
    """torch_xla has no XLA lowering of this operation."""
    return torch.special.i1e(x)


def test_no_fallback():
    x = tensor(15)
    run_block(pyxla.assert_no_fallback(), lambda: add(x, x).cpu())
    text = message(lambda: run_block(pyxla.assert_no_fallback(), lambda: falls_back(x)))
    assert text.startswith("assert_no_fallback: block: expected every operation on XLA, got aten::special_i1e")
    run_block(pyxla.assert_no_fallback(), lambda: add(x, x).cpu())


def test_fallback_that_has_happened_before_counts_again():
    x = tensor(16)
    falls_back(x)
    assert "(1)" in message(lambda: run_block(pyxla.assert_no_fallback(), lambda: falls_back(x)))


@pytest.mark.parametrize("times_before", [0, 1, 3])
def test_fallback_after_the_counters_were_cleared(times_before):
    """torch_xla clears its counters while torch.compile looks for fallbacks, so an equal count does not mean none."""
    import torch_xla.debug.metrics as metrics

    x = tensor(16)
    metrics.clear_counters()
    for _ in range(times_before):
        falls_back(x)

    def work():
        metrics.clear_counters()
        falls_back(x)

    clear = metrics.clear_counters
    assert "aten::special_i1e (1)" in message(lambda: run_block(pyxla.assert_no_fallback(), work))
    assert metrics.clear_counters is clear


def test_fallback_before_the_counters_were_cleared():
    import torch_xla.debug.metrics as metrics

    x = tensor(16)

    def work():
        falls_back(x)
        metrics.clear_counters()

    assert "aten::special_i1e (1)" in message(lambda: run_block(pyxla.assert_no_fallback(), work))
