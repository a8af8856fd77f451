import pytest
import torch
from pyxla_kernels.simple_add.cases import BAD_INPUTS, CASES
from pyxla_kernels.simple_add.simple_add import simple_add

from pyxla import testing


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(simple_add, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(simple_add, bad)


def test_alpha_is_part_of_the_cache_key():
    """torch_xla's `_xla_custom_call` returns the first alpha's result for every alpha (docs/concept)."""
    import torch_xla

    a, b = torch.ones(2, device=torch_xla.device()), torch.ones(2, device=torch_xla.device())
    assert [simple_add(a, b, alpha)[0].item() for alpha in (2.0, 3.0, 4.0)] == [3.0, 4.0, 5.0]
