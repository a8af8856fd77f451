"""One mistake in an op at a time: the check of pyxla.testing that finds it, and what it says."""

import re

import pytest
import torch
import torch_xla

import pyxla
from pyxla import PyxlaError, testing
from pyxla.library.find import Library
from pyxla.library.op_table import read_op_table
from pyxla.library.register import register_library
from pyxla.pjrt import cuda_plugin
from pyxla.sync import drain_errors
from pyxla.testing import bad_input_checks, cuda_handler, device_memory
from pyxla.testing.binding_error import binding_error
from tests.conftest import ROOT, compile_library
from tests.probe import mistakes

CASE = testing.Case("3x5", "two lengths", lambda g: {"x": torch.randn(3, 5, generator=g)})
SCALED = testing.Case("3x5", "as above", lambda g: CASE.arguments() | {"renormalize": True})


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory):
    """The library of the mistakes, registered with XLA and found by raw calls."""
    path = compile_library(ROOT / "tests/probe/mistakes_ffi.cc", tmp_path_factory.mktemp("mistakes") / "libmistakes.so")
    found = Library(path, "preloaded", read_op_table(path))
    register_library(found)
    with pytest.MonkeyPatch.context() as patch:
        for module in (device_memory, cuda_handler):
            patch.setattr(module, "loaded_library", lambda name: found)
        yield found


@pytest.fixture(autouse=True)
def forget_records():
    yield
    testing.op_checks.RECORDS.clear()


def fails(check, *arguments) -> str:
    """The first line of the check's AssertionError."""
    with pytest.raises(AssertionError) as caught:
        check(*arguments)
    return str(caught.value).partition("\n")[0]


@pytest.mark.parametrize("check", [testing.check_raw, testing.check_lazy, testing.check_compiled])
def test_operand_that_the_handler_writes(check):
    expected = "mistake_writes_operand: x: expected no change, as the schema does not declare it as mutated"
    assert fails(check, mistakes.mistake_writes_operand, CASE).startswith(expected)


def test_result_that_changes_from_call_to_call():
    expected = "mistake_unstable: result: expected the same bits from the same call, got others"
    assert fails(testing.check_raw, mistakes.mistake_unstable, CASE).startswith(expected)
    testing.check_raw(mistakes.mistake_unstable, testing.Case("f", "", CASE.build, repeatable=False))


INT = testing.BadInput(
    "int", lambda g: {"x": torch.ones(3, 5, dtype=torch.int32)}, "mistake_{}: x: expected dtype float32, got int32"
)


def bad(name: str, **more) -> testing.BadInput:
    return testing.BadInput("int", INT.build, INT.message.format(name), **more)


def test_check_that_the_handler_lacks(monkeypatch):
    monkeypatch.setattr(bad_input_checks, "cases_of", lambda op: [CASE])
    message = (
        "mistake_unchecked: the handler for Host: expected 'mistake_unchecked: x: expected dtype float32, got int32'"
    )
    assert fails(testing.check_bad_input, mistakes.mistake_unchecked, bad("unchecked")).startswith(message)
    testing.check_bad_input(mistakes.mistake_unchecked, bad("unchecked", only_python=True))
    testing.check_bad_input(mistakes.mistake_checked, bad("checked"))
    message = "mistake_checked: the handler for Host: expected no error for a BadInput(only_python=True), got "
    assert fails(testing.check_bad_input, mistakes.mistake_checked, bad("checked", only_python=True)).startswith(
        message
    )


@pytest.mark.parametrize(
    ("name", "exception"),
    [
        ("throws", r"std::out_of_range: vector.*"),
        ("throws_in_loop", r"std::runtime_error: piece of the loop"),
        ("throws_number", r"one that is not a std::exception"),
    ],
)
def test_exception_of_a_handler(name, exception):
    """It ends no process, in a raw call and on XLA."""
    op = getattr(mistakes, f"mistake_{name}")
    expected = rf"mistake_{name}: handler: expected no C\+\+ exception, got {exception}"
    x = torch.ones(3, 5)
    with pytest.raises(PyxlaError, match=expected):
        device_memory.call_raw(op, {"x": x}, "Host")
    result = op(x.to(torch_xla.device()))
    with pytest.raises(PyxlaError, match=expected):
        pyxla.sync()
    del result
    assert (torch.ones(2, device=torch_xla.device()) + 1).cpu().tolist() == [2, 2]


@pytest.mark.parametrize("check", [testing.check_raw, testing.check_lazy, testing.check_compiled])
def test_attribute_of_another_name(check):
    """XLA's own message, "Attribute name mismatch: renormalize vs renormalise", names neither the op nor the side."""
    with pytest.raises(PyxlaError) as caught:
        check(mistakes.mistake_binding, SCALED)
    assert (
        caught.value.message
        == testing.op_checks.RECORDS[-1]["problem"]
        == (
            "mistake_binding: handler: expected a binding of the arguments and results in the schema, "
            "got attribute renormalise where the schema has renormalize"
        )
    )
    assert caught.value.hint == (
        ".Arg, .Ret and .Attr in mistake_binding_ffi.cc are to follow (Tensor x, bool renormalize) -> Tensor"
    )
    testing.op_checks.RECORDS.clear()


@pytest.mark.parametrize(
    "text",
    [
        "[execute] Failed to decode all FFI handler operands (bad operands at: 0)\nDiagnostics:\nWrong buffer rank",
        "Bad StatusOr access: INVALID_ARGUMENT: Wrong number of results: expected 2 but got 1",
        "INVALID_ARGUMENT: Wrong number of attributes: expected 1 but got 2 with name(s): a, b",
    ],
)
def test_other_binding(text):
    """What XLA says of it stays in the message."""
    error = binding_error(mistakes.mistake_binding, text)
    assert error.message.endswith(", got " + text.rpartition("INVALID_ARGUMENT: ")[2].rpartition("\n")[2])
    assert binding_error(mistakes.mistake_binding, "mistake_binding: x: expected rank 2, got shape (3,)") is None


@pytest.mark.skipif(cuda_handler._has_gpu(), reason="a GPU is visible: --device cuda runs the handlers")
class TestCudaHandler:
    def test_right(self):
        assert cuda_handler.check_cuda_handler(mistakes.mistake_launch, SCALED)
        assert not cuda_handler.check_cuda_handler(mistakes.mistake_checked, CASE)  # has none

    def test_where_a_gpu_is_visible(self, monkeypatch):
        monkeypatch.setattr(cuda_plugin, "gpus", lambda: ("a GPU",))
        assert not cuda_handler.check_cuda_handler(mistakes.mistake_attribute, SCALED)

    def test_attribute_of_another_name(self):
        said = fails(testing.check_raw, mistakes.mistake_attribute, SCALED)
        expected = "mistake_attribute: handler: expected a binding of the arguments and results in the schema"
        assert said == (
            f"mistake_attribute: the CUDA handler refuses case 3x5: {expected}, "
            "got attribute renormalise where the schema has renormalize"
        )

    def test_launch_whose_error_is_ignored(self):
        said = fails(testing.check_raw, mistakes.mistake_silent, SCALED)
        assert said.startswith(
            "mistake_silent: the CUDA handler: expected the error of a launch without a GPU, got none"
        )

    def test_operands_in_another_order(self):
        case = testing.Case("3x5", "", lambda g: CASE.arguments() | {"weight": torch.ones(5)})
        said = fails(testing.check_raw, mistakes.mistake_order, case)
        expected = "the CUDA handler refuses case 3x5: mistake_order: weight: expected shape (5,), got (3, 5)"
        assert said == f"mistake_order: {expected}"


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fake_shape", "result 0: the fake function returns shape (5, 3), the reference (3, 5)"),
        ("fake_dtype", "result 1: the fake function returns int32, the reference int64"),
        ("fake_count", "results: the schema has 2, the fake function returns 1, the reference 2"),
        ("reference_count", "results: the schema has 2, the fake function returns 2, the reference 1"),
    ],
)
def test_results_that_are_declared_otherwise(check, name, expected):
    """Each check says so first, in the same words."""
    assert fails(check, getattr(mistakes, f"mistake_{name}"), CASE) == f"mistake_{name}: {expected}"


def test_error_of_one_case_does_not_reach_the_next():
    with pytest.raises(RuntimeError, match=re.escape("mistake_throws: handler: expected no C++ exception")):
        testing.check_lazy(mistakes.mistake_throws, CASE)
    try:
        assert (torch.ones(2, device=torch_xla.device()) + 1).cpu().tolist() == [2, 2]
    finally:
        drain_errors()
