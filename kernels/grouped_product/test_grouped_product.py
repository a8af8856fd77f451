import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels.grouped_product.cases import (
    BAD_INPUTS,
    CASES,
    arguments,
    torch_grouped_product,
    torch_product_of_each_expert,
)
from pyxla_kernels.grouped_product.grouped_product import grouped_product

from pyxla import testing
from pyxla.testing.tolerance import compare


def on_xla(made: dict) -> dict:
    import torch_xla

    return {n: v.to(torch_xla.device()) if isinstance(v, torch.Tensor) else v for n, v in made.items()}


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(grouped_product, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(grouped_product, bad)


@pytest.mark.parametrize("x_rows", [1, 3])
def test_reference_against_torch_in_float64(x_rows):
    made = arguments(torch.Generator().manual_seed(0), (9, x_rows, 3, 5, 16, 24), torch.float64)
    torch.testing.assert_close(grouped_product.reference(**made), torch_grouped_product(**made))
    made["experts"] = made["experts"].clamp(0, 4)
    torch.testing.assert_close(grouped_product.reference(**made), torch_product_of_each_expert(**made))


@settings(max_examples=40)
@given(
    tokens=st.integers(0, 40),
    top_k=st.integers(1, 4),
    x_has_rows=st.booleans(),
    num_experts=st.integers(1, 9),
    n=st.integers(1, 70),
    k=st.one_of(st.integers(0, 100), st.sampled_from([511, 512, 513, 1030])),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    bias=st.booleans(),
)
def test_any_shape(tokens, top_k, x_has_rows, num_experts, n, k, dtype, bias):
    shape = (tokens, top_k if x_has_rows else 1, top_k, num_experts, n, k)
    made = arguments(torch.Generator().manual_seed(1), shape, dtype, bias)
    wide = {n: v.double() if v is not None and v.is_floating_point() else v for n, v in made.items()}
    got = grouped_product(**on_xla(made)).cpu()
    compare("grouped_product", got, grouped_product.reference(**wide), roundings=128)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("x_rows", [1, 2])
def test_a_row_does_not_depend_on_the_others(dtype, x_rows):
    """Bit for bit: alone, among few and among so many that the GPU's other kernels compute it."""
    shape = (700, x_rows, 2, 3, 136, 1032)
    made = arguments(torch.Generator().manual_seed(2), shape, dtype)

    def run(tokens: slice) -> torch.Tensor:
        part = {name: made[name][tokens].contiguous() for name in ("x", "experts")}
        return grouped_product(**on_xla(made | part)).cpu()

    whole = run(slice(None))
    for tokens in (slice(2, 3), slice(40, 49), slice(100, 180), slice(300, 600)):
        assert torch.equal(whole[tokens], run(tokens))


def test_nan_stays_in_its_row_and_its_expert():
    """Neither a NaN in a row of x, nor one in the weight of an expert without rows, reaches another row."""
    made = arguments(torch.Generator().manual_seed(3), (12, 1, 2, 4, 16, 64), torch.bfloat16)
    want = grouped_product(**on_xla(made)).cpu()
    made["x"][5], made["weight"][1] = torch.nan, torch.nan
    assert not (made["experts"] == 1).any()
    got = grouped_product(**on_xla(made)).cpu()
    exists = (made["experts"] >= 0) & (made["experts"] < 4)
    assert exists[5].any()
    assert torch.equal(got.isnan().all(dim=-1), exists & (torch.arange(12) == 5)[:, None])
    others = torch.arange(12) != 5
    assert torch.equal(got[others], want[others])
