"""Which errors fuzz takes for those of float32."""

import pytest
import torch
from pyxla_kernels.fused_decoder_layer.fused_decoder_layer import fused_decoder_layer
from pyxla_kernels.fused_decoder_layer.inputs import arguments as decoder_arguments
from pyxla_kernels.fused_decoder_layer.inputs import torch_fused_decoder_layer
from pyxla_kernels.paged_attention.paged_attention import paged_attention
from pyxla_kernels.rotary_embedding.rotary_embedding import rotary_embedding
from pyxla_kernels.simple_add.simple_add import simple_add

from pyxla.fuzz.check import _wrong_numbers
from pyxla.testing import Case, oracle


@pytest.mark.parametrize(("error", "allowed"), [(6e-8, True), (1e-6, False)], ids=["a rounding", "a mistake"])
def test_terms_that_cancel(error, allowed):
    """1.188 - 1.171: a rounding of the product is four times what the tests allow for the small sum."""
    arguments = {"a": torch.tensor(1.187993884), "b": torch.tensor(-1.560865668), "alpha": 0.75}
    want = oracle(simple_add, arguments)
    got = tuple((result + error).float() for result in want)
    case = Case("cancel", "found by devtool fuzz", lambda g: arguments)
    assert (_wrong_numbers(simple_add, case, arguments, got, want, "CPU") is None) is allowed


@pytest.mark.parametrize(("error", "allowed"), [(1e-5, True), (1e-3, False)], ids=["a rounding", "a mistake"])
def test_softmax_of_large_scores(error, allowed):
    """Two scores of 134: float32 rounds each by up to 8e-6, and so the weights."""
    kv_cache = torch.zeros(2, 2, 1, 1, 8)
    kv_cache[0, :, 0, 0, 0], kv_cache[1, 0] = 1.5, 1.0
    arguments = {
        "query": torch.nn.functional.one_hot(torch.tensor([[0]]), 8) * 448.0,
        "kv_cache": kv_cache,
        "context_lens": torch.tensor([2], dtype=torch.int32),
        "block_tables": torch.tensor([[0, 1]], dtype=torch.int32),
        "query_start_loc": torch.tensor([0, 1], dtype=torch.int32),
        "num_seqs": torch.tensor([1], dtype=torch.int32),
        "scale": 0.2,
    }
    arguments |= dict.fromkeys(("sliding_window", "soft_cap", "alibi_slopes", "sinks", "kv_scales"))
    want = oracle(paged_attention, arguments)
    assert want[0].unique().tolist() == [0.5]
    got = tuple((result * (1 + error)).float() for result in want)
    case = Case("large", "found by devtool fuzz", lambda g: arguments, roundings=64)
    assert (_wrong_numbers(paged_attention, case, arguments, got, want, "CPU") is None) is allowed


@pytest.mark.parametrize(("key", "allowed"), [(0.0, True), (1.0, False)], ids=["right", "wrong"])
def test_infinite_in_float32_alone(key, allowed):
    """3e38 * 1.5 - 3e38 * 1 is finite, its first product is not in float32: that element says nothing, others do."""
    head = torch.tensor([[[3e38, 3e38]]])
    cos_sin = torch.tensor([[1.5, 1.0]])
    arguments = {"positions": torch.tensor([0]), "query": head, "key": head * 0, "cos_sin_cache": cos_sin}
    case = Case("overflow", "a product is too large for float32", lambda g: arguments)
    want = oracle(rotary_embedding, arguments)
    got = (torch.tensor([[[float("inf"), float("inf")]]]), torch.full((1, 1, 2), key))
    assert want[0][0, 0].tolist() == pytest.approx([1.5e38, 7.5e38])
    assert (_wrong_numbers(rotary_embedding, case, arguments, got, want, "CPU") is None) is allowed


@pytest.mark.parametrize(("has_peer", "allowed"), [(True, True), (False, False)], ids=["peer", "none"])
def test_infinite_in_the_dtype_of_the_op(has_peer, allowed):
    """A residual of 200,704 is infinite in float16, and a norm that reads it is NaN, as it is with torch's own ops."""
    arguments = decoder_arguments(torch.Generator().manual_seed(0), (1, 256, 256, 256, 8), torch.float16)
    arguments["attention"][0, 0] = arguments["o_proj"][0, 0] = 448
    residual, out = oracle(fused_decoder_layer, arguments)
    assert residual.half().isinf().any() and out.isfinite().all()
    got = (residual.half(), torch.full_like(out, torch.nan).half())
    case = Case(
        "large", "found by devtool fuzz", lambda g: arguments, peer=torch_fused_decoder_layer if has_peer else None
    )
    problem = _wrong_numbers(fused_decoder_layer, case, arguments, got, (residual, out), "CUDA")
    assert (problem is None) is allowed


def test_finite_where_the_reference_is_infinite():
    """Where the reference is infinite, a number is wrong, although the reference in float32 is infinite too."""
    arguments = {"a": torch.tensor(torch.inf).half(), "b": torch.tensor(1.0).half(), "alpha": 1.0}
    want = oracle(simple_add, arguments)
    got = tuple(torch.full_like(result, 65504.0).half() for result in want)
    case = Case("large", "found by devtool fuzz", lambda g: arguments)
    assert _wrong_numbers(simple_add, case, arguments, got, want, "CPU") is not None


def test_a_peer_that_is_right_by_luck():
    """A weight of 448 at an element of the residual that cancels: torch's own op errs there too, but for one input."""
    arguments = decoder_arguments(torch.Generator().manual_seed(0), (1, 256, 256, 256, 8), torch.float16)
    arguments["qkv_proj"] = None
    residual, _ = oracle(fused_decoder_layer, arguments)
    arguments["input_norm"][residual.abs().argmin()] = 448
    _, want = oracle(fused_decoder_layer, arguments)
    copies = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    got = (residual.half(), torch_fused_decoder_layer(**copies))

    def exact(**drawn):
        return oracle(fused_decoder_layer, drawn)[1].half()

    def lucky(**drawn):
        is_same = torch.equal(drawn["attention"], arguments["attention"])
        return exact(**drawn) if is_same else torch_fused_decoder_layer(**drawn)

    for peer, allowed in ((lucky, True), (exact, False)):
        case = Case("cancel", "found by devtool fuzz", lambda g: arguments, peer=peer)
        problem = _wrong_numbers(fused_decoder_layer, case, arguments, got, (residual, want), "CPU")
        assert (problem is None) is allowed


@pytest.mark.parametrize("in_place", [True, False])
def test_an_operand_that_the_peer_changes_too(in_place):
    """Two large products that nearly cancel: torch's own op errs as much in the residual, which it changes, or not."""
    arguments = decoder_arguments(torch.Generator().manual_seed(0), (1, 256, 256, 256, 8), torch.float16)
    gate, up = arguments["gate_up_proj"].chunk(2)
    up[0] *= 50
    gate[1], up[1] = gate[0] * 1.01, up[0]
    arguments["down_proj"][0, :2] = torch.tensor([448.0, -448.0])
    want = oracle(fused_decoder_layer, arguments)
    copies = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    got = (torch_fused_decoder_layer(**copies), copies["residual"])[::-1]

    def peer(residual, **drawn):
        return torch_fused_decoder_layer(residual=residual if in_place else residual.clone(), **drawn)

    case = Case("cancel", "found by devtool fuzz", lambda g: arguments, peer=peer)
    assert (_wrong_numbers(fused_decoder_layer, case, arguments, got, want, "CPU") is None) is in_place
