import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels._testing.checks_on_xla import is_cuda
from pyxla_kernels.fused_decoder_layer.fused_decoder_layer import fused_decoder_layer, fused_decoder_layer_rotary
from pyxla_kernels.fused_decoder_layer.inputs import ROUNDINGS
from pyxla_kernels.fused_decoder_layer.rotary_cases import (
    FUSED_DECODER_LAYER_ROTARY_BAD_INPUTS,
    FUSED_DECODER_LAYER_ROTARY_CASES,
    rotary_arguments,
    torch_fused_decoder_layer_rotary,
)

from pyxla import testing
from pyxla.testing.tolerance import compare


def on_xla(made: dict) -> dict:
    import torch_xla

    return {n: v.to(torch_xla.device()) if isinstance(v, torch.Tensor) else v for n, v in made.items()}


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", FUSED_DECODER_LAYER_ROTARY_CASES, ids=str)
def test_op(check, case):
    check(fused_decoder_layer_rotary, case)


@pytest.mark.parametrize("bad", FUSED_DECODER_LAYER_ROTARY_BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(fused_decoder_layer_rotary, bad)


def test_wrong_positions_and_slots_on_cuda():
    """A wrong position makes a token's query and key NaN, and its value is stored; a wrong slot stores nothing."""
    if not is_cuda():
        pytest.skip("XLA's CPU raises")
    made = rotary_arguments(torch.Generator().manual_seed(0), (9, 256, 256, 256, 2, 1, 64), torch.bfloat16)
    made["slot_mapping"] = torch.arange(9, dtype=torch.int32)
    wrong, without = (made | {"slot_mapping": made["slot_mapping"].clone()} for _ in range(2))
    wrong["positions"] = made["positions"].clone()
    wrong["positions"][1], wrong["slot_mapping"][2], without["slot_mapping"][2] = 50, 80, -1
    got, want = on_xla(wrong), on_xla(without)
    query, want_query = fused_decoder_layer_rotary(**got).cpu(), fused_decoder_layer_rotary(**want).cpu()
    cache, want_cache = got["kv_cache"].cpu(), want["kv_cache"].cpu()
    want_query[1] = torch.nan
    want_cache.flatten(1, 2)[0, 1] = torch.nan
    torch.testing.assert_close(query, want_query, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(cache, want_cache, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("merged", [False, True])
def test_reference_against_torch_in_float64(merged):
    """In float64 the roundings between torch's ops do not show."""
    shape = (5, 256, 256, 512, 3, 2, 32)
    made = rotary_arguments(
        torch.Generator().manual_seed(0), shape, torch.float64, table_dtype=torch.float64, merged=merged
    )
    other = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in made.items()}
    torch.testing.assert_close(fused_decoder_layer_rotary.reference(**made), torch_fused_decoder_layer_rotary(**other))
    for name in ("residual", "kv_cache"):
        torch.testing.assert_close(made[name], other[name])


def test_values_are_those_of_fused_decoder_layer():
    """Bit for bit, like the residual stream: the same products in another order of tiles, rounded once."""
    made = rotary_arguments(torch.Generator().manual_seed(3), (13, 256, 256, 256, 4, 2, 128), torch.bfloat16)
    made["slot_mapping"] = torch.arange(13, dtype=torch.int32)
    query, products = on_xla(made), on_xla(made)
    fused_decoder_layer_rotary(**query)
    for name in ("positions", "cos_sin_cache", "kv_cache", "slot_mapping"):
        del products[name]
    qkv = fused_decoder_layer(**products).cpu().unflatten(1, (8, 128))
    assert torch.equal(query["kv_cache"].cpu().flatten(1, 2)[1, :13], qkv[:, 6:])
    assert torch.equal(query["residual"].cpu(), products["residual"].cpu())


@settings(max_examples=20)
@given(
    tokens=st.integers(0, 64),
    heads=st.tuples(st.integers(1, 7), st.integers(0, 3)),
    d=st.integers(1, 8),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    merged=st.booleans(),
)
def test_any_shape(tokens, heads, d, dtype, merged):
    made = rotary_arguments(
        torch.Generator().manual_seed(1), (tokens, 256, 256, 256, *heads, 32 * d), dtype, merged=merged
    )
    wide = {n: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for n, v in made.items()}
    moved = on_xla(made)
    got, want = fused_decoder_layer_rotary(**moved), fused_decoder_layer_rotary.reference(**wide)
    compare("fused_decoder_layer_rotary", got.cpu(), want, roundings=ROUNDINGS[dtype])
    for name in ("residual", "kv_cache"):
        compare(name, moved[name].cpu(), wide[name], roundings=ROUNDINGS[dtype])


def test_a_row_does_not_depend_on_the_others():
    """Bit for bit, in the cache too."""
    made = rotary_arguments(torch.Generator().manual_seed(2), (9, 256, 512, 256, 3, 1, 64), torch.bfloat16)

    def run(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = ("attention", "residual", "positions", "slot_mapping")
        moved = on_xla(made | {name: made[name][rows].contiguous() for name in tokens})
        return fused_decoder_layer_rotary(**moved).cpu(), moved["kv_cache"].cpu().flatten(1, 2)

    slots = made["slot_mapping"][5:7].long()
    (whole, whole_cache), (part, part_cache) = run(slice(None)), run(slice(5, 7))
    assert torch.equal(whole[5:7], part)
    assert torch.equal(whole_cache[:, slots], part_cache[:, slots])
