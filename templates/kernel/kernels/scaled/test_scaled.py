import pytest
from my_kernels.scaled.cases import BAD_INPUTS, CASES
from my_kernels.scaled.scaled import scaled

from pyxla import testing


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(scaled, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(scaled, bad)
