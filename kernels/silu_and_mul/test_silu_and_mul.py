import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels._testing.checks_on_xla import (
    check_gradient_on_xla,
    check_gradients_numerically,
    check_nan_stays_in_its_element,
)
from pyxla_kernels.silu_and_mul.cases import BAD_INPUTS, CASES
from pyxla_kernels.silu_and_mul.silu_and_mul import silu_and_mul

from pyxla import testing
from pyxla.testing.tolerance import compare


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(silu_and_mul, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(silu_and_mul, bad)


def test_reference_against_the_formula_in_float64():
    x = torch.randn(6, 34, dtype=torch.float64)
    torch.testing.assert_close(silu_and_mul.reference(x), x[:, :17] / (1 + torch.exp(-x[:, :17])) * x[:, 17:])


def test_a_nan_stays_in_its_element():
    import torch_xla

    check_nan_stays_in_its_element(silu_and_mul, torch_xla.device())


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(0, 9), max_size=3),
    d=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_any_shape(shape, d, dtype):
    import torch_xla

    x = torch.randn(*shape, 2 * d).to(dtype)
    compare("silu_and_mul", silu_and_mul(x.to(torch_xla.device())).cpu(), silu_and_mul.reference(x.double()))


def test_gradcheck():
    x = torch.randn(3, 10, dtype=torch.float64, requires_grad=True)
    check_gradients_numerically(silu_and_mul, (x,))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_on_xla(compiled):
    import torch_xla

    check_gradient_on_xla(silu_and_mul, torch_xla.device(), torch.randn(5, 48), compiled=compiled)
