import pytest
from pyxla_kernels.rms_norm_triton.rms_norm_triton import triton

from pyxla import testing


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", testing.cases_of(triton), ids=str)
def test_op(check, case):
    check(triton, case)
