import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels._testing.checks_on_xla import check_gradient_on_xla, check_gradients_numerically
from pyxla_kernels.rms_norm.cases import BAD_INPUTS, CASES
from pyxla_kernels.rms_norm.rms_norm import rms_norm

from pyxla import testing
from pyxla.testing.tolerance import compare


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(rms_norm, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(rms_norm, bad)


def test_reference_against_torch_in_float64():
    x, weight = torch.randn(6, 33, dtype=torch.float64), torch.randn(33, dtype=torch.float64)
    torch.testing.assert_close(
        rms_norm.reference(x, weight, 1e-5), torch.nn.functional.rms_norm(x, (33,), weight, 1e-5)
    )


def test_a_nan_stays_in_its_row():
    """Not a case, because opcheck counts a NaN as a difference."""
    import torch_xla

    x = torch.randn(3, 40)
    x[1, 7] = torch.nan
    got = rms_norm(x.to(torch_xla.device()), None).cpu()
    assert got.isnan().all(dim=1).tolist() == [False, True, False]
    compare("rms_norm", got, rms_norm.reference(x.double(), None, 1e-6))


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    weighted=st.booleans(),
)
def test_any_shape(shape, dtype, weighted):
    import torch_xla

    x = torch.randn(shape).to(dtype)
    weight = torch.randn(shape[-1]).to(dtype) if weighted else None
    want = rms_norm.reference(x.double(), None if weight is None else weight.double(), 1e-6)
    device = torch_xla.device()
    got = rms_norm(x.to(device), None if weight is None else weight.to(device))
    compare("rms_norm", got.cpu(), want)


@pytest.mark.parametrize("weighted", [True, False])
def test_gradcheck(weighted):
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, dtype=torch.float64, requires_grad=True) if weighted else None
    check_gradients_numerically(lambda x, w: rms_norm(x, w, 1e-3), (x, weight))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_on_xla(compiled):
    import torch_xla

    check_gradient_on_xla(
        rms_norm, torch_xla.device(), torch.randn(5, 24), torch.randn(24), compiled=compiled, roundings=64
    )


def test_transposed_and_sliced_operands():
    import torch_xla

    base = torch.randn(40, 12)
    on_xla = base.to(torch_xla.device())
    for view in (lambda t: t.t(), lambda t: t[3:9, ::2], lambda t: t.reshape(2, 20, 12)[:, 1:5].transpose(0, 1)):
        compare("rms_norm", rms_norm(view(on_xla), None).cpu(), rms_norm.reference(view(base).double(), None, 1e-6))
