import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels.silu_and_mul.cases import BAD_INPUTS, CASES
from pyxla_kernels.silu_and_mul.silu_and_mul import silu_and_mul

from pyxla import testing
from pyxla.compare import compare


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
def test_op(check, case):
    check(silu_and_mul, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(silu_and_mul, bad)


def test_reference_against_the_formula_in_float64():
    x = torch.randn(6, 34, dtype=torch.float64)
    torch.testing.assert_close(silu_and_mul.reference(x), x[:, :17] / (1 + torch.exp(-x[:, :17])) * x[:, 17:])


def test_a_nan_stays_in_its_element():
    """Not a case: opcheck takes a NaN for a difference."""
    import torch_xla

    x = torch.tensor([[torch.nan, 2.0, 3.0, 1.0, torch.nan, 1.0]])
    got = silu_and_mul(x.to(torch_xla.device())).cpu()
    assert got.isnan().tolist() == [[True, True, False]]
    compare("silu_and_mul", got, silu_and_mul.reference(x.double()))


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
    assert torch.autograd.gradcheck(silu_and_mul, (x,))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_on_xla(compiled):
    import torch_xla

    x, upstream = torch.randn(5, 48), torch.randn(5, 24)

    def gradient(x, upstream, call):
        x = x.clone().requires_grad_()
        (call(x) * upstream).sum().backward()
        return x.grad

    want = gradient(x.double(), upstream.double(), silu_and_mul.reference)
    device = torch_xla.device()
    call = torch.compile(silu_and_mul, backend="openxla", fullgraph=True) if compiled else silu_and_mul
    got = gradient(x.to(device), upstream.to(device), lambda x: call(x))
    compare("silu_and_mul gradient", got.cpu(), want)
