"""`pyxla.inspect` of functions that it cannot inspect: an error that says why, and nothing left changed."""

import os

import pytest
import torch
import torch_xla

import pyxla
from pyxla.hlo import dump
from tests.probe import probe_ops

pytestmark = pytest.mark.usefixtures("probe_library")
DEVICE = torch_xla.device()


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def add(x, y):
    """A custom call of two operands."""
    return probe_ops.probe_optionals(y, x)


def test_cpu_tensors_into_a_compiled_function():
    """torch_xla warns and runs the function on the CPU."""
    fn = torch.compile(lambda x: add(x, x), backend="openxla")
    with (
        pytest.warns(UserWarning, match="Found tensor with shape"),
        pytest.raises(
            pyxla.PyxlaError, match=r"got one that left XLA nothing to do and returned Tensor\n\nhint: .*device"
        ),
    ):
        pyxla.inspect(fn, torch.ones(22))


@pytest.mark.parametrize(
    ("fn", "got"),
    [
        (lambda: None, "nothing"),
        (lambda: 3, "int"),
        (lambda: torch.ones(3) + 1, "Tensor"),
        (lambda: (add(tensor(23), tensor(23)), None)[1], "nothing"),
    ],
)
def test_function_that_leaves_xla_nothing_to_do(fn, got):
    with pytest.raises(pyxla.PyxlaError) as caught:
        pyxla.inspect(fn)
    assert caught.value.message == (
        "inspect: fn: expected a function that computes on XLA, got one that left XLA nothing to do and returned " + got
    )


def test_no_function():
    with pytest.raises(pyxla.ArgumentError, match="inspect: fn: expected a function, got Tensor"):
        pyxla.inspect(tensor(2))


def test_exception_of_the_function_goes_through():
    """The cache key, the flags and the folder are restored."""
    x, environment = tensor(24), dict(os.environ)

    def broken(x):
        y = add(x, x)
        raise KeyError("mine")
        return y

    with pytest.raises(KeyError, match="mine") as caught:
        pyxla.inspect(broken, x)
    assert caught.traceback[-1].name == "broken"
    with pytest.raises(KeyError), pyxla.inspecting():
        broken(x)
    assert dict(os.environ) == environment and dump._switched_to is None
    assert len(pyxla.inspect(lambda: add(x, x)).calls()) == 1


def test_error_of_a_handler_is_raised_once():
    x = torch.full((4,), -1.0, device=DEVICE)
    with pytest.raises(pyxla.PyxlaError, match="probe_fail"):
        pyxla.inspect(probe_ops.probe_fail, x)
    assert (torch.ones(2, device=DEVICE) + 1).cpu().tolist() == [2, 2]
