"""Which errors fuzz takes for those of float32."""

import pytest
import torch
from pyxla_kernels.simple_add.simple_add import simple_add

from pyxla.fuzz.check import _float32_is_no_nearer
from pyxla.testing import Case, oracle


@pytest.mark.parametrize(("error", "allowed"), [(6e-8, True), (1e-6, False)], ids=["a rounding", "a mistake"])
def test_terms_that_cancel(error, allowed):
    """1.188 - 1.171: a rounding of the product is four times what the tests allow for the small sum."""
    arguments = {"a": torch.tensor(1.187993884), "b": torch.tensor(-1.560865668), "alpha": 0.75}
    want = oracle(simple_add, arguments)
    got = tuple((result + error).float() for result in want)
    case = Case("cancel", "found by devtool fuzz", lambda g: arguments)
    assert _float32_is_no_nearer(simple_add, case, arguments, got, want) is allowed
