"""On one device; tests/spmd/summed has the tests on a mesh."""

import pytest
import torch
from pyxla_kernels.fused_all_reduce_rms_norm.cases import BAD_INPUTS, CASES, arguments
from pyxla_kernels.fused_all_reduce_rms_norm.fused_all_reduce_rms_norm import fused_all_reduce_rms_norm

from pyxla import PyxlaError, testing
from pyxla.testing import direct_call


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(fused_all_reduce_rms_norm, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(fused_all_reduce_rms_norm, bad)


def test_reference_against_torch_in_float64():
    x, residual, weight = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 6, 33), (6, 33), (33,)))
    want = x[0] + x[1] + x[2] + residual
    got = fused_all_reduce_rms_norm.reference(x, residual, weight, [], 1e-5)
    torch.testing.assert_close(residual, want)
    torch.testing.assert_close(got, torch.nn.functional.rms_norm(want, (33,), weight, 1e-5))


def test_a_device_that_does_not_come():
    """The first call waits and says who is missing; the next one does not wait for a call that was given up."""
    given = arguments(torch.Generator().manual_seed(0), (1, 2, 64), torch.float32, None)
    given |= {"groups": [0, 1, 0], "channel": 7, "timeout": 0.1}
    before = given["residual"].clone()
    for got in ("devices 0", "a call that one of them gave up"):
        call = direct_call.prepare(fused_all_reduce_rms_norm, given, [torch.empty(2, 64)], "Host")
        with pytest.raises(PyxlaError) as caught:
            call(0)
        expected = f"fused_all_reduce_rms_norm: timeout: expected devices 0, 2 within 0.1 s, got {got}"
        assert caught.value.message == expected
    assert given["residual"].equal(before)
