import pytest
import torch
from pyxla_kernels.common.testing.checks_on_xla import check_gradients_numerically
from pyxla_kernels.rms_norm_triton.cases import BAD_INPUTS, CASES
from pyxla_kernels.rms_norm_triton.rms_norm_triton import rms_norm_triton

from pyxla import testing


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(rms_norm_triton, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(rms_norm_triton, bad)


def test_gradcheck():
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, dtype=torch.float64, requires_grad=True)
    check_gradients_numerically(lambda x, w: rms_norm_triton(x, w, 1e-3), (x, weight))
