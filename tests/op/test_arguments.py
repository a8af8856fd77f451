"""The form of pyxla's errors: in Python, in C++ and between processes."""

import ast
import copy
import pickle
import re
from pathlib import Path

import pytest

import pyxla
from pyxla import errors
from pyxla.errors import (
    ArgumentError,
    ArtifactError,
    DefinitionError,
    LibraryError,
    PyxlaError,
    VersionError,
    mismatch,
)
from pyxla.op.arguments import Check
from tests.conftest import ROOT

CLASSES = [PyxlaError, ArgumentError, ArtifactError, DefinitionError, LibraryError, VersionError]
FORM = re.compile(r"[\w ./-]+: [\w. -]+: expected .+, got .*", re.DOTALL)


def test_message_without_a_hint():
    error = PyxlaError(mismatch("rms_norm", "weight", (8,), (7,)))
    assert str(error) == "rms_norm: weight: expected (8,), got (7,)"
    assert (error.message, error.hint) == (str(error), None)


def test_hint_stands_on_a_line_of_its_own():
    error = PyxlaError(mismatch("rms_norm", "weight", (8,), (7,)), "weight must match x")
    assert str(error) == "rms_norm: weight: expected (8,), got (7,)\n\nhint: weight must match x"
    assert (error.message, error.hint) == ("rms_norm: weight: expected (8,), got (7,)", "weight must match x")


@pytest.mark.parametrize("error_class", CLASSES)
@pytest.mark.parametrize("hint", [None, "devtool build op"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_cross_processes(error_class, hint, protocol):
    """A worker's exception is pickled; by default Exception would use the whole text as the message."""
    error = error_class(mismatch("op", "x", 1, 2), hint)
    for other in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is error_class
        assert (str(other), other.message, other.hint) == (str(error), error.message, error.hint)


@pytest.mark.parametrize("error_class", CLASSES)
def test_bases(error_class):
    """One base is RuntimeError, which torch also raises for a wrong argument."""
    assert issubclass(error_class, PyxlaError) and issubclass(error_class, RuntimeError)


def test_a_wrong_argument_is_a_value_error():
    assert issubclass(ArgumentError, ValueError)


def sources() -> list[Path]:
    """The modules of pyxla; the Python files in cmake/ are programs of the build."""
    return [path for path in sorted((ROOT / "pyxla").rglob("*.py")) if path.parent.name != "cmake"]


def test_every_exception_class_of_pyxla_derives_from_its_error():
    """Read from the sources: a class derived from an exception is one, and there are no others."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    names = {n for n, b in bases.items() if any(re.search(r"(Error|Exception|Warning)$", base) for base in b)}
    assert names == {c.__name__ for c in CLASSES}


def test_every_error_class_is_public():
    assert {c.__name__ for c in CLASSES} <= set(pyxla.__all__)
    assert {n for n, c in vars(errors).items() if isinstance(c, type)} == {c.__name__ for c in CLASSES}


def test_no_bare_exception_for_a_user():
    """pyxla raises only its own exceptions, AssertionError for tests, and what torch_xla's plugin interface needs."""
    # AttributeError: Python expects it from the `__getattr__` of a module or an object. SkipTest: a missing tool.
    allowed = {c.__name__ for c in CLASSES} | {"AssertionError", "AttributeError", "NotImplementedError", "SkipTest"}
    files = sources()
    assert len(files) >= 70  # otherwise the files have moved
    offenders = []
    for path in files:
        raised = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise) and node.exc]
        words = (ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc) for node in raised)
        # Classes alone: other names are exceptions that were caught, or functions that return one of pyxla's.
        names = {word for word in (text.rpartition(".")[2] for text in words) if word[0].isupper()}
        offenders += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(names - allowed)]
    assert not offenders


def checks(check: Check, torch) -> list:
    """For every check, a call that fails."""
    return [
        lambda: check.that(False, "x", "a", "b"),
        lambda: check.dtype("x", torch.ones(1), (torch.int32, torch.bool)),
        lambda: check.rank("x", torch.ones(1), 2),
        lambda: check.shape("x", torch.ones(1), (2, 3)),
        lambda: check.finite("x", float("nan")),
    ]


def test_checks_raise_in_the_one_form():
    import torch

    for call in checks(Check("op"), torch):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert FORM.fullmatch(caught.value.message), caught.value.message
        assert caught.value.message.startswith("op: x: expected ")


def test_checks_hand_on_the_hint():
    import torch

    check = Check("op")
    for call in (
        lambda: check.that(False, "x", "a", "b", hint="do this"),
        lambda: check.dtype("x", torch.ones(1), (torch.int32,), hint="do this"),
        lambda: check.rank("x", torch.ones(1), 2, hint="do this"),
        lambda: check.shape("x", torch.ones(1), (2, 3), hint="do this"),
        lambda: check.finite("x", float("inf"), hint="do this"),
    ):
        with pytest.raises(ArgumentError, match=r"got .*\n\nhint: do this$"):
            call()


def test_checks_say_nothing_about_good_arguments():
    import torch

    check = Check("op")
    check.that(True, "x", "a", "b")
    check.dtype("x", torch.ones(1), (torch.float16, torch.float32))
    check.dtype("x", torch.ones(1, dtype=torch.float64), (torch.float32,), reference=(torch.float64,))
    check.rank("x", torch.tensor(1.0), 0)
    check.shape("x", torch.ones(2, 3), torch.Size([2, 3]))
    check.finite("x", -1e300)


def test_reference_dtypes_are_refused_on_the_way_to_xla():
    import torch

    with pytest.raises(ArgumentError, match="op: x: expected dtype float32, got float64"):
        Check("op").dtype(
            "x", torch.ones(1, dtype=torch.float64, device="meta"), (torch.float32,), reference=(torch.float64,)
        )
