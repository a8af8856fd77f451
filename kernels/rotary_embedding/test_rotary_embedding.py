from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels._testing.checks_on_xla import check_gradients_numerically, is_cuda
from pyxla_kernels.rotary_embedding.cases import BAD_INPUTS, CASES, arguments, bad_inputs
from pyxla_kernels.rotary_embedding.rotary_embedding import rotary_embedding, rotary_embedding_inplace

from pyxla import testing
from pyxla.testing.tolerance import compare

# Both ops are one function in C++, so in place one case for each of its paths is enough.
IN_PLACE = ("bf16-neox", "f16-interleaved", "bf16-neox-partial", "f16-interleaved-d-7", "f32-no-token", "f32-rot-dim-0")
RUNS = [(rotary_embedding, case) for case in CASES]
# A peer is compared with the op's results, and this op has none.
RUNS += [(rotary_embedding_inplace, replace(case, peer=None)) for case in CASES if case.name in IN_PLACE]
BAD_RUNS = [(rotary_embedding, bad) for bad in BAD_INPUTS]
BAD_RUNS += [(rotary_embedding_inplace, bad) for bad in bad_inputs("rotary_embedding_inplace")]


def name_of(value) -> str:
    return getattr(value, "name", None) or value.__name__


@pytest.mark.parametrize("check", testing.CHECKS, ids=name_of)
@pytest.mark.parametrize(("op", "case"), RUNS, ids=name_of)
def test_op(check, op, case):
    check(op, case)


@pytest.mark.parametrize(("op", "bad"), BAD_RUNS, ids=name_of)
def test_bad_input(op, bad):
    testing.check_bad_input(op, bad)


def test_position_out_of_range_makes_its_token_nan_on_cuda():
    if not is_cuda():
        pytest.skip("XLA's CPU raises")
    a = arguments(torch.Generator().manual_seed(0), torch.bfloat16, d=80, rot_dim=32)
    wrong = a["positions"].clone()
    wrong[2:4] = torch.tensor([-1, 50])
    results = rotary_embedding(**to_xla(a | {"positions": wrong}))
    for got, good in zip(results, rotary_embedding(**to_xla(a)), strict=True):
        want = good.cpu()
        want[2:4, :, :32] = torch.nan
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0, equal_nan=True)


def to_xla(given_arguments: dict) -> dict:
    import torch_xla

    return {n: v.to(torch_xla.device()) if torch.is_tensor(v) else v for n, v in given_arguments.items()}


@pytest.mark.parametrize("is_neox", [True, False])
def test_reference_against_complex_numbers(is_neox):
    """A pair is a complex number, and the rotation its product with exp(i * angle)."""
    generator = torch.Generator().manual_seed(0)
    a = arguments(generator, torch.float64, d=12, rot_dim=8, cache_dtype=torch.float32, is_neox=is_neox)
    cos, sin = a["cos_sin_cache"][a["positions"]].double()[:, None].chunk(2, dim=-1)
    got = rotary_embedding.reference(**a)
    for x, rotated in zip((a["query"], a["key"]), got, strict=True):
        pairs = x[..., :8].unflatten(-1, (2, 4)).transpose(-1, -2) if is_neox else x[..., :8].unflatten(-1, (4, 2))
        want = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin))
        want = (want.transpose(-1, -2) if is_neox else want).flatten(-2)
        torch.testing.assert_close(rotated, torch.cat([want, x[..., 8:]], dim=-1))


@settings(max_examples=30)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_any_shape(data, dtype):
    d = data.draw(st.integers(0, 40))
    a = arguments(
        torch.Generator().manual_seed(data.draw(st.integers(0, 9))),
        dtype,
        tokens=data.draw(st.integers(0, 9)),
        heads=(data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))),
        d=d,
        rot_dim=2 * data.draw(st.integers(0, d // 2)),
        cache_dtype=data.draw(st.sampled_from([dtype, torch.float32])),
        position_dtype=data.draw(st.sampled_from([torch.int32, torch.int64])),
        is_neox=data.draw(st.booleans()),
    )
    want = testing.oracle(rotary_embedding, a)
    for got, wanted in zip(rotary_embedding(**to_xla(a)), want, strict=True):
        compare("rotary_embedding", got.cpu(), wanted)
    in_place = to_xla(a)
    rotary_embedding_inplace(**in_place)
    for name, wanted in zip(("query", "key"), want, strict=True):
        compare("rotary_embedding_inplace", in_place[name].cpu(), wanted)


@pytest.mark.parametrize("is_neox", [True, False])
def test_gradcheck(is_neox):
    a = arguments(torch.Generator().manual_seed(0), torch.float64, tokens=3, d=7, rot_dim=6, is_neox=is_neox)
    query, key = a["query"].requires_grad_(), a["key"].requires_grad_()
    table = a["cos_sin_cache"].double()
    check_gradients_numerically(lambda q, k: rotary_embedding(a["positions"], q, k, table, is_neox), (query, key))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_on_xla(compiled):
    call = torch.compile(rotary_embedding, backend="openxla", fullgraph=True) if compiled else rotary_embedding
    a = arguments(torch.Generator().manual_seed(0), torch.float32, d=16, rot_dim=8)
    upstream = (torch.randn(7, 4, 16), torch.randn(7, 2, 16))

    def gradients(a, upstream, call):
        leaves = {name: a[name].clone().requires_grad_() for name in ("query", "key")}
        results = call(**a | leaves)
        sum((result * grad).sum() for result, grad in zip(results, upstream, strict=True)).backward()
        return [leaf.grad for leaf in leaves.values()]

    wide = {n: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for n, v in a.items()}
    want = gradients(wide, [grad.double() for grad in upstream], rotary_embedding.reference)
    moved = to_xla(a)
    got = gradients(moved, [grad.to(moved["query"].device) for grad in upstream], lambda **a: call(**a))
    for g, w in zip(got, want, strict=True):
        compare("rotary_embedding gradient", g.cpu(), w)


@pytest.mark.parametrize("place", ["cpu", "xla", "compiled"])
def test_one_tensor_in_both_places(place):
    """Without the check it would be rotated twice on CPU tensors, and once on XLA."""
    a = arguments(torch.Generator().manual_seed(0), torch.float32, heads=(2, 2), d=16, rot_dim=8)
    moved = a if place == "cpu" else to_xla(a)
    call = rotary_embedding_inplace
    if place == "compiled":
        call = torch.compile(call, backend="openxla", fullgraph=True)
    with pytest.raises(Exception, match="key: expected another tensor than query, as both are updated in place"):
        call(**moved | {"key": moved["query"]})
    assert torch.equal(moved["query"].cpu(), a["query"])
