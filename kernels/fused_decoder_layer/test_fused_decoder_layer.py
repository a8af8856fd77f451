import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels.fused_decoder_layer.cases import BAD_INPUTS, CASES
from pyxla_kernels.fused_decoder_layer.fused_decoder_layer import fused_decoder_layer
from pyxla_kernels.fused_decoder_layer.inputs import ROUNDINGS, arguments, torch_fused_decoder_layer

from pyxla import testing
from pyxla.testing.tolerance import compare


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(fused_decoder_layer, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(fused_decoder_layer, bad)


def test_reference_against_torch_in_float64():
    """In float64 the roundings between torch's ops do not show."""
    made = arguments(torch.Generator().manual_seed(0), (3, 256, 256, 512, 24), torch.float64)
    residual = made["residual"].clone()
    want = torch_fused_decoder_layer(**made | {"residual": residual})
    torch.testing.assert_close(fused_decoder_layer.reference(**made), want)
    torch.testing.assert_close(made["residual"], residual)


@settings(max_examples=20)
@given(
    tokens=st.integers(0, 64),
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)),
    columns=st.integers(1, 20),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
)
def test_any_shape(tokens, sizes, columns, dtype):
    import torch_xla

    width, hidden, inner = (256 * size for size in sizes)
    shape = (tokens, width, hidden, inner, 8 * columns)
    made = arguments(torch.Generator().manual_seed(1), shape, dtype)
    wide = {name: value.double() if isinstance(value, torch.Tensor) else value for name, value in made.items()}
    on_xla = {
        name: value.to(torch_xla.device()) if isinstance(value, torch.Tensor) else value for name, value in made.items()
    }
    got, want = fused_decoder_layer(**on_xla), fused_decoder_layer.reference(**wide)
    compare("fused_decoder_layer", got.cpu(), want, roundings=ROUNDINGS[dtype])
    compare("residual", on_xla["residual"].cpu(), wide["residual"], roundings=ROUNDINGS[dtype])


def test_a_row_does_not_depend_on_the_others():
    """Bit for bit: its products are summed in the same order, however many tokens there are."""
    import torch_xla

    made = arguments(torch.Generator().manual_seed(2), (9, 256, 512, 256, 64), torch.bfloat16)
    device = torch_xla.device()

    def run(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        on_xla = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in made.items()}
        on_xla["attention"], residual = made["attention"][rows].to(device), made["residual"][rows].to(device)
        out = fused_decoder_layer(**on_xla | {"residual": residual})
        return out.cpu(), residual.cpu()

    for whole, part in zip(run(slice(None)), run(slice(4, 6)), strict=True):
        assert torch.equal(whole[4:6], part)
