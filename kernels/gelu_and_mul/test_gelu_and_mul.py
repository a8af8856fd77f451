import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels._testing.checks_on_xla import (
    check_gradient_on_xla,
    check_gradients_numerically,
    check_nan_stays_in_its_element,
)
from pyxla_kernels.gelu_and_mul.cases import BAD_INPUTS, CASES
from pyxla_kernels.gelu_and_mul.gelu_and_mul import gelu_and_mul

from pyxla import testing
from pyxla.testing.tolerance import compare


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(gelu_and_mul, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(gelu_and_mul, bad)


def test_reference_against_the_formula_in_float64():
    x = torch.randn(6, 34, dtype=torch.float64)
    gate, up = x[:, :17], x[:, 17:]
    torch.testing.assert_close(gelu_and_mul.reference(x), gate * torch.special.ndtr(gate) * up)
    inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    torch.testing.assert_close(gelu_and_mul.reference(x, "tanh"), gate / 2 * (1 + torch.tanh(inner)) * up)


def test_a_nan_stays_in_its_element():
    import torch_xla

    check_nan_stays_in_its_element(gelu_and_mul, torch_xla.device())


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(0, 9), max_size=3),
    d=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    approximate=st.sampled_from(["none", "tanh"]),
)
def test_any_shape(shape, d, dtype, approximate):
    import torch_xla

    x = torch.randn(*shape, 2 * d).to(dtype)
    got = gelu_and_mul(x.to(torch_xla.device()), approximate)
    compare("gelu_and_mul", got.cpu(), gelu_and_mul.reference(x.double(), approximate))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gradcheck(approximate):
    x = torch.randn(3, 10, dtype=torch.float64, requires_grad=True)
    check_gradients_numerically(lambda x: gelu_and_mul(x, approximate), (x,))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_on_xla(compiled):
    import torch_xla

    check_gradient_on_xla(gelu_and_mul, torch_xla.device(), torch.randn(5, 48), compiled=compiled)
