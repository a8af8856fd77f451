import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels.fused_add_rms_norm.cases import BAD_INPUTS, CASES
from pyxla_kernels.fused_add_rms_norm.fused_add_rms_norm import fused_add_rms_norm

from pyxla import testing
from pyxla.testing.tolerance import compare


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(fused_add_rms_norm, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(fused_add_rms_norm, bad)


def test_reference_against_torch_in_float64():
    x, residual, weight = (torch.randn(shape, dtype=torch.float64) for shape in ((6, 33), (6, 33), (33,)))
    want = x + residual
    got = fused_add_rms_norm.reference(x, residual, weight, 1e-5)
    torch.testing.assert_close(residual, want)
    torch.testing.assert_close(got, torch.nn.functional.rms_norm(want, (33,), weight, 1e-5))


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    weighted=st.booleans(),
)
def test_any_shape(shape, dtype, weighted):
    import torch_xla

    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    weight = torch.randn(shape[-1]).to(dtype) if weighted else None
    device = torch_xla.device()
    on_xla = residual.to(device)
    got = fused_add_rms_norm(x.to(device), on_xla, None if weight is None else weight.to(device))
    wide = residual.double()
    want = fused_add_rms_norm.reference(x.double(), wide, None if weight is None else weight.double(), 1e-6)
    compare("fused_add_rms_norm", got.cpu(), want)
    compare("residual", on_xla.cpu(), wide)


def test_layers_in_a_row_share_one_residual():
    """Each layer adds to what the previous one left, in one graph and in place."""
    import torch_xla

    x, residual = torch.randn(3, 32), torch.randn(3, 32)
    device = torch_xla.device()
    on_xla, wide = residual.to(device), residual.double()
    got, want = x.to(device), x.double()
    for _ in range(3):
        got = fused_add_rms_norm(got, on_xla, None)
        want = fused_add_rms_norm.reference(want, wide, None, 1e-6)
    compare("fused_add_rms_norm", got.cpu(), want, roundings=64)
    compare("residual", on_xla.cpu(), wide, roundings=64)
