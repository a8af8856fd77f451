"""The fast path emits the same as torch's dispatcher, and rejects the same arguments.

An active TorchDispatchMode keeps a call off the fast path.
"""

import itertools
import math

import numpy
import pytest
import torch
import torch_xla
from torch.utils._python_dispatch import TorchDispatchMode

from tests.probe import probe_ops as ops

pytestmark = pytest.mark.usefixtures("probe_library")
DEVICE = torch_xla.device()

PLAIN = {"integer": 7, "number": 0.5, "flag": True, "string": "plain", "integers": [1, -2], "numbers": [0.5]}
ABSENT = {"maybe_integer": None, "maybe_number": None}
# Values that compare equal or that torch converts or rejects, as well as values that are taken unchanged.
SCALARS = [1, True, 1.0, 0, False, 0.0, -0.0, math.nan, math.inf, "1", None, 2.5, 2**63 - 1, 2**63, -(2**63) - 1]
OTHERS = [
    numpy.float64(1.0),
    numpy.int64(1),
    torch.tensor(1),
    torch.tensor(1.0, device=DEVICE),
    (1, -2),
    [],
    {},
    object,
]
LISTS = [
    [1],
    [True],
    [1.0],
    [0.0],
    [-0.0],
    [math.nan],
    [None],
    ["1"],
    [2**63],
    [numpy.int64(1)],
    [[1]],
    [1, 1.0],
    [2.5],
]
NAMES = [*PLAIN, *ABSENT]


class NoFastPath(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def outcome(call, *args, **kwargs):
    """The numbers as text, so that NaN equals NaN and 0.0 differs from -0.0; or the error."""
    try:
        results = call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error).partition("\n")[0]
    return [result.cpu().tolist().__repr__() for result in results]


def through_dispatcher(*args, **kwargs):
    with NoFastPath():
        return ops.probe_attributes.overload(*args, **kwargs)


@pytest.mark.filterwarnings("ignore")  # torch warns of conversions
@pytest.mark.parametrize("name", NAMES)
def test_every_value_as_through_the_dispatcher(name):
    x = torch.zeros(1, device=DEVICE)
    differing = []
    # Twice, because what the first round caches must not let another value pass in the second.
    for value in [*SCALARS, *OTHERS, *LISTS] * 2:
        values = PLAIN | ABSENT | {name: value}
        want = outcome(through_dispatcher, x, **values)
        for form, got in {
            "keywords": outcome(ops.probe_attributes, x, **values),
            "in order": outcome(ops.probe_attributes, x, *values.values()),
            "torch.ops": outcome(torch.ops.xla_gpu.probe_attributes, x, *values.values()),
        }.items():
            if got != want:
                differing.append((form, value, got, want))
    assert differing == []


def test_keywords_in_any_order_and_defaults():
    a, x, b = (torch.full((1,), value, device=DEVICE) for value in (2.0, 3.0, 5.0))
    for names in itertools.permutations(["a", "x", "b"]):
        values = {"a": a, "x": x, "b": b}
        for call in (ops.probe_optionals, torch.ops.xla_gpu.probe_optionals):
            assert call(**{name: values[name] for name in names}).item() == 55.0
            assert call(a, **{name: values[name] for name in names if name != "a"}).item() == 55.0
            assert call(**{name: values[name] for name in names if name != "b"}).item() == 5.0
            assert call(None, x).item() == call(x=x, a=None).item() == 3.0


def test_wrong_arguments_are_refused_by_torch():
    x = torch.ones(1, device=DEVICE)
    assert ops.probe_increment(x, 1.0) is None
    for args, kwargs in [
        ((x,), {}),
        ((x,), {"byte": 1.0}),
        ((x,), {"by": 1.0, "byte": 1.0}),
        ((x, 1.0), {"by": 1.0}),
        ((x, 1.0, 1.0), {}),
        ((1.0, x), {}),
    ]:
        kind, message = outcome(ops.probe_increment, *args, **kwargs)
        assert kind is RuntimeError and "xla_gpu::probe_increment() " in message
        assert outcome(torch.ops.xla_gpu.probe_increment, *args, **kwargs) == (kind, message)
    assert x.cpu().tolist() == [2.0]


def test_subclass_and_gradient_go_through_torch():
    seen = []

    class Noted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    x = torch.ones(1, device=DEVICE)
    assert ops.probe_optionals(None, x).item() == 1.0
    noted = x.as_subclass(Noted)
    seen.clear()
    ops.probe_optionals(None, noted)
    assert seen == [ops.probe_optionals.overload]
    for wanting in (x.clone().requires_grad_(), torch.nn.Parameter(x)):
        assert ops.probe_optionals(None, wanting).requires_grad
        with torch.no_grad():
            assert not ops.probe_optionals(None, wanting).requires_grad
