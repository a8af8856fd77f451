"""Properties of slopes, sinks, float8 caches, the log-sum-exp result and numbers that are not finite, beyond right
numbers."""

import math

import pytest
import torch
from pyxla_kernels._paged_attention.batches import arguments, integers
from pyxla_kernels._testing.checks_on_xla import is_cuda
from pyxla_kernels.paged_attention.cases import ALL_OPTIONS, BAD_INPUTS, F8, RAGGED
from pyxla_kernels.paged_attention.paged_attention import paged_attention, paged_attention_lse

from pyxla import ArgumentError, testing
from pyxla.testing.tolerance import compare


def on_xla(op, arguments: dict) -> tuple[torch.Tensor, ...]:
    """The results of the op on XLA tensors, as CPU tensors."""
    import torch_xla

    results = op(**{n: v.to(torch_xla.device()) if torch.is_tensor(v) else v for n, v in arguments.items()})
    return tuple(t.cpu() for t in (results if isinstance(results, tuple) else (results,)))


def batch(lengths=RAGGED, dtype: torch.dtype = torch.float32, **options) -> dict:
    return arguments(torch.Generator().manual_seed(0), lengths, dtype, **options)


def one_token_each(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **changes) -> dict:
    """Row i sees one key, keys[i], and one value: the result is the value and lse the logit."""
    count = len(query)
    return {
        "query": query[:, None],
        "kv_cache": torch.stack([keys, values])[:, :, None, None],
        "context_lens": integers(*[1] * count),
        "block_tables": torch.arange(count, dtype=torch.int32)[:, None],
        "query_start_loc": torch.arange(count + 1, dtype=torch.int32),
        "num_seqs": integers(count),
        "scale": 1.0,
    } | changes


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_lse_op_refuses_what_the_other_does(bad):
    with pytest.raises(ArgumentError) as error:
        paged_attention_lse(**bad.arguments())
    assert bad.message.replace("paged_attention:", "paged_attention_lse:") in error.value.message


@pytest.mark.parametrize("options", [{}, ALL_OPTIONS], ids=["plain", "all-options"])
def test_both_ops_give_the_same_result_bit_for_bit(options):
    a = batch([*RAGGED, (1, 2100)], torch.bfloat16, **options)
    assert torch.equal(on_xla(paged_attention, a)[0], on_xla(paged_attention_lse, a)[0])


@pytest.mark.parametrize(
    "nothing",
    [
        {"alibi_slopes": torch.zeros(8)},
        {"sinks": torch.full((8,), -math.inf)},
        {"kv_scales": torch.ones(2, 2)},
    ],
    ids=lambda nothing: next(iter(nothing)),
)
def test_values_that_change_nothing(nothing):
    a = batch([*RAGGED, (1, 2100)], cache_dtype=F8)
    for got, want in zip(on_xla(paged_attention_lse, a | nothing), on_xla(paged_attention_lse, a), strict=True):
        assert torch.equal(got, want)


def test_sink_of_a_context_without_weight_takes_all():
    """With a logit of -200 and a sink of 0, the sink takes the whole sum."""
    query, keys, values = torch.full((1, 8), 5.0), torch.full((1, 8), -5.0), torch.ones(1, 8)
    out, lse = on_xla(paged_attention_lse, one_token_each(query, keys, values, sinks=torch.zeros(1)))
    assert out.abs().max() == 0 and lse.item() == 0


def test_bias_grows_with_the_distance():
    """All products are 0: the weights are a geometric series in e^slope."""
    a = batch([(1, 40)], heads=(1, 1), d=8, scale=0.0)
    slope = 0.25
    weights = torch.exp(slope * torch.arange(-39, 1).double())
    _, lse = on_xla(paged_attention_lse, a | {"alibi_slopes": torch.tensor([slope])})
    assert abs(lse.item() - math.log(weights.sum().item())) < 1e-6


@pytest.mark.parametrize("d", [8, 64, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_float8_is_read_exactly(d, dtype):
    codes = torch.arange(256, dtype=torch.uint8).view(F8)
    values = codes.reshape(-1, d)
    a = one_token_each(torch.zeros(len(values), d, dtype=dtype), torch.zeros_like(values), values)
    got = on_xla(paged_attention, a)[0].flatten()
    assert torch.equal(got.nan_to_num(999), codes.to(dtype).nan_to_num(999))
    assert got.isnan().nonzero().flatten().tolist() == [0x7F, 0xFF]

    # Row i takes element i of the codes, times 1, as its logit.
    finite = codes.float().nan_to_num(0).to(F8).reshape(-1, d).repeat_interleave(d, dim=0)
    one_hot = torch.eye(d, dtype=dtype).repeat(256 // d, 1)
    _, lse = on_xla(paged_attention_lse, one_token_each(one_hot, finite, finite))
    torch.testing.assert_close(lse.flatten(), codes.float().nan_to_num(0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("cut", [16, 1024])
def test_results_of_two_parts_of_a_context_merge_to_the_whole(cut):
    """This is the use of lse: the parts' results are weighted by e^lse."""
    whole = batch([(1, 2100)])
    out, lse = on_xla(paged_attention_lse, whole)
    blocks = cut // 16
    first = whole | {"context_lens": integers(cut), "block_tables": whole["block_tables"][:, :blocks]}
    rest = whole | {"context_lens": integers(2100 - cut), "block_tables": whole["block_tables"][:, blocks:]}
    parts = [on_xla(paged_attention_lse, part) for part in (first, rest)]
    outs, lses = (torch.stack(t).double() for t in zip(*parts, strict=True))
    torch.testing.assert_close(lses.logsumexp(0), lse.double(), rtol=1e-6, atol=1e-6)
    merged = (lses.softmax(0)[..., None] * outs).sum(0)
    torch.testing.assert_close(merged, out.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("where", [0, 1], ids=["key", "value"])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("place", [0, 11, 34, 38, 39])
@pytest.mark.parametrize(
    ("new", "context", "seqs"),
    [(30, 40, 1), (4, 40, 1), (4, 500, 1), (8, 100, 128), (30, 2100, 1)],
    ids=["prefill", "decode", "few-tiles", "32-rows", "splits"],
)
def test_nan_reaches_the_rows_that_see_it_and_no_other(where, window, place, new, context, seqs, dtype):
    """A NaN among the last 40 keys. Neighbouring rows in the tile must not get it."""
    position = context - 40 + place
    lengths = [(new, context)] * seqs
    a = batch(lengths, dtype, block_size=8, sliding_window=window)
    block = a["block_tables"][0, position // 8].item()
    if block < 0:
        return  # before every token's window: no entry refers to it
    a["kv_cache"][where, block, position % 8] = torch.nan
    own = torch.arange(context - new, context)
    sees = (position <= own) & (position > own - (window or context))
    sees = torch.cat([sees, sees.new_zeros((seqs - 1) * new)])
    out = on_xla(paged_attention, a)[0]
    assert torch.equal(out.isnan().all(dim=2).all(dim=1), sees)
    assert torch.equal(out.isnan().any(dim=2).any(dim=1), sees)
    assert torch.equal(paged_attention(**a).isnan().any(dim=2).any(dim=1), sees)


def test_infinite_value_is_weighed_as_torch_does():
    a = batch([(4, 20)])
    a["kv_cache"][1, a["block_tables"][0, 0], 2] = math.inf
    compare("paged_attention", on_xla(paged_attention, a)[0], testing.oracle(paged_attention, a)[0])


# For bfloat16, each has a kernel of its own on CUDA.
@pytest.mark.parametrize(
    ("dtype", "block_size", "d"),
    [(torch.float32, 8, 64), (torch.bfloat16, 8, 128), (torch.bfloat16, 4, 128), (torch.bfloat16, 4, 256)],
)
@pytest.mark.parametrize("where", [0, 1], ids=["key", "value"])
def test_nan_in_a_float8_cache_reaches_the_rows_that_see_it_and_no_other(where, dtype, block_size, d):
    options = {"cache_dtype": F8, "scaled": True, "sinks": True, "alibi": True, "sliding_window": 6}
    a = batch([(30, 40)], dtype, block_size=block_size, d=d, **options)
    a["kv_cache"][where, a["block_tables"][0, 19 // block_size], 19 % block_size] = torch.nan
    distance = torch.arange(10, 40) - 19
    sees = (distance >= 0) & (distance < 6)
    out, lse = on_xla(paged_attention_lse, a)
    assert torch.equal(out.isnan().any(dim=2).any(dim=1), sees)
    assert torch.equal(lse.isnan().any(dim=1), sees & (where == 0))


def test_cache_of_more_than_2_to_the_31_elements():
    """Keys and values each have more elements; those in sight are at the far end of both."""
    import torch_xla

    if not is_cuda():
        pytest.skip("a cache of 8.6 GB: only on a GPU")
    small = batch([(1, 700), (9, 300)], torch.bfloat16, heads=(8, 8), d=128, block_size=256)
    want = on_xla(paged_attention, small)[0]
    used = small["kv_cache"].shape[1]
    blocks = 2**31 // small["kv_cache"][0, 0].numel() + used
    cache = torch.full((2, blocks, 256, 8, 128), torch.nan, dtype=torch.bfloat16, device=torch_xla.device())
    cache[:, -used:] = small["kv_cache"].to(torch_xla.device())
    tables = small["block_tables"].clamp(min=0) + (blocks - used)
    assert torch.equal(on_xla(paged_attention, small | {"kv_cache": cache, "block_tables": tables})[0], want)
