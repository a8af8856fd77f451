import dataclasses
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels._paged_attention.batches import arguments, integers, repeated, sequences
from pyxla_kernels._paged_attention.cases import BATCHES
from pyxla_kernels._testing.checks_on_xla import is_cuda
from pyxla_kernels._testing.custom_calls import call_handler, to_xla
from pyxla_kernels.paged_attention.cases import (
    BAD_INPUTS,
    CASES,
    FEW_TILES,
    LSE_BATCHES,
    MORE_ROWS,
    PAGED_ATTENTION_LSE_CASES,
    PREFILL_SPLITS,
    RAGGED,
    changed,
)
from pyxla_kernels.paged_attention.paged_attention import decode_tokens, paged_attention, paged_attention_lse

from pyxla import ArgumentError, PyxlaError, sync, testing
from pyxla.pjrt.platform import platform_of, requested_device
from pyxla.testing.device_memory import call_raw
from pyxla.testing.tolerance import compare

# On CUDA each dtype has its own kernels.
EITHER_DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
AT_RUN_TIME = [bad for bad in BAD_INPUTS if bad.at_run_time]
BEFORE = [bad for bad in BAD_INPUTS if not bad.at_run_time]
OPS = [(paged_attention, case) for case in CASES] + [(paged_attention_lse, case) for case in PAGED_ATTENTION_LSE_CASES]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """One thread is best for torch's small products; XLA has its own threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def on_xla(arguments: dict) -> torch.Tensor:
    """The result of the op on XLA tensors, as a CPU tensor."""
    return paged_attention(**to_xla(arguments)).cpu()


def lse_on_xla(arguments: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of paged_attention_lse on XLA tensors, as CPU tensors."""
    out, lse = paged_attention_lse(**to_xla(arguments))
    return out.cpu(), lse.cpu()


def dense(a: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in float64, independent of the reference: one masked product per sequence, by torch's own attention.
    A sink is one more key, with a value of zero."""
    out = torch.zeros_like(a["query"], dtype=torch.float64)
    lse = torch.full(out.shape[:2], -math.inf, dtype=torch.float64)
    for rows, first, keys, values in sequences(a):
        group = a["query"].shape[1] // keys.shape[1]
        scales = (1, 1) if a["kv_scales"] is None else a["kv_scales"].double()[..., None]
        query = a["query"][rows].double().transpose(0, 1)
        keys, values = (
            (t.double() * s).repeat_interleave(group, dim=1).transpose(0, 1)
            for t, s in zip((keys, values), scales, strict=True)
        )
        end = first + keys.shape[1]
        distance = torch.arange(end - query.shape[1], end)[:, None] - torch.arange(first, end)
        bias = torch.zeros(len(query), *distance.shape, dtype=torch.float64)
        if a["alibi_slopes"] is not None:
            bias -= a["alibi_slopes"].double()[:, None, None] * distance
        bias.masked_fill_((distance < 0) | (distance >= (a["sliding_window"] or math.inf)), -math.inf)
        if a["sinks"] is not None:
            bias = torch.cat([bias, a["sinks"].double()[:, None, None].expand(-1, query.shape[1], 1)], dim=2)
            keys, values = (torch.nn.functional.pad(t, (0, 0, 0, 1)) for t in (keys, values))
        logits = a["scale"] * query @ keys.transpose(1, 2)
        if a["soft_cap"] is None:
            result = torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=bias, scale=a["scale"]
            )
        else:
            logits = a["soft_cap"] * torch.tanh(logits / a["soft_cap"])
            result = (logits + bias).softmax(-1) @ values
        out[rows] = result.transpose(0, 1)
        lse[rows] = torch.logsumexp(logits + bias, -1).transpose(0, 1)
    return out, lse


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("op", "case"), OPS, ids=lambda value: getattr(value, "name", None))
def test_op(check, op, case):
    check(op, case)


@pytest.mark.parametrize("case", CASES + PAGED_ATTENTION_LSE_CASES, ids=str)
def test_reference_against_dense_attention(case):
    a = case.arguments()
    got = testing.oracle(paged_attention_lse, a)
    torch.testing.assert_close(got, dense(a), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", BEFORE, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(paged_attention, bad)


@EITHER_DTYPE
@pytest.mark.parametrize("bad", AT_RUN_TIME, ids=str)
def test_value_out_of_range(bad, dtype):
    """The op raises on CPU tensors and on XLA:CPU; XLA:CUDA cannot raise and returns NaN."""
    wrong = bad.arguments()
    wrong |= {name: wrong[name].to(dtype) for name in ("query", "kv_cache")}
    message = re.escape(bad.message)
    with pytest.raises(ArgumentError, match=message):
        paged_attention(**wrong)
    if is_cuda():
        out, lse = lse_on_xla(wrong)
        assert out.isnan().any()
        assert torch.equal(out.isnan().any(dim=2), lse.isnan())
        return
    on_device = to_xla(wrong)
    with pytest.raises(PyxlaError, match=message):
        result = paged_attention(**on_device)  # kept: XLA skips a result that nobody holds
        sync()
    del result
    assert on_xla(changed()).isfinite().all()


# XLA skips a call whose result has no elements.
@pytest.mark.parametrize("bad", [bad for bad in BEFORE if bad.arguments()["query"].numel()], ids=str)
@pytest.mark.parametrize("op", [paged_attention, paged_attention_lse], ids=lambda op: op.name)
def test_handler_checks_what_python_checks(op, bad):
    """A custom call that another program built gets the same message from the handler."""
    rows, heads = bad.arguments()["query"].shape[:2]
    lse = [f"tensor<{rows}x{heads}xf32>"] if op.schema.result_count == 2 else []
    with pytest.raises(PyxlaError, match=re.escape(bad.message.replace("paged_attention", op.name))):
        call_handler(op, to_xla(bad.arguments()), lse)


# One set of shapes for all of hypothesis' batches: XLA compiles once per dtype and attribute.
SEQS, ROWS, BLOCKS, BLOCK_SIZE, MAX_BLOCKS = 5, 24, 40, 8, 6


@st.composite
def ragged_batches(draw):
    count = draw(st.integers(0, SEQS))
    new = [draw(st.integers(0, ROWS // SEQS)) for _ in range(count)]
    contexts = [draw(st.integers(n, MAX_BLOCKS * BLOCK_SIZE)) for n in new]
    table = [draw(st.integers(0, BLOCKS - 1)) for _ in range(SEQS * MAX_BLOCKS)]
    starts = [sum(new[:i]) for i in range(count + 1)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    is_float8, has_options = draw(st.booleans()), draw(st.booleans())
    cache = torch.randn(2, BLOCKS, BLOCK_SIZE, 2, 24, generator=generator)
    return {
        "query": torch.randn(ROWS, 4, 24, generator=generator).to(dtype),
        "kv_cache": cache.to(torch.float8_e4m3fn if is_float8 else dtype),
        "context_lens": integers(*contexts, *[-1] * (SEQS - count)),
        "block_tables": integers(*table).reshape(SEQS, MAX_BLOCKS),
        "query_start_loc": integers(*starts, *[99] * (SEQS - count)),
        "num_seqs": integers(count),
        "scale": 0.3,
        "sliding_window": draw(st.sampled_from([None, 1, 5, 30])),
        "soft_cap": draw(st.sampled_from([None, 1.5])),
        "alibi_slopes": torch.rand(4, generator=generator) if has_options else None,
        "sinks": torch.randn(4, generator=generator) if has_options else None,
        "kv_scales": torch.rand(2, 2, generator=generator) + 0.5 if is_float8 and has_options else None,
    }


@settings(max_examples=60)
@given(ragged_batches())
def test_any_ragged_batch(batch):
    want, lse = dense(batch)
    torch.testing.assert_close(testing.oracle(paged_attention_lse, batch), (want, lse), rtol=1e-12, atol=1e-12)
    got, got_lse = lse_on_xla(batch)
    compare("paged_attention_lse", got_lse, lse)
    if not is_cuda() or got.dtype == torch.float32:
        compare("paged_attention_lse", got, want)
        return
    # Tensor cores take weights of 16 bits, each rounded by up to eps / 2: the error is up to eps / 2 times the sum of
    # the weighted values' magnitudes, even where the values cancel.
    keys, values = batch["kv_cache"].double()
    magnitudes, _ = dense(batch | {"kv_cache": torch.stack([keys, values.abs()])})
    eps = torch.finfo(got.dtype).eps
    assert torch.all((got.double() - want).abs() <= eps * (magnitudes / 2 + want.abs()) + 1e-6)


def test_other_lengths_do_not_recompile():
    generator = torch.Generator().manual_seed(0)
    a = arguments(generator, RAGGED, torch.float32)
    on_xla(a)
    before = testing.compilations()
    starts, lengths = a["query_start_loc"], a["context_lens"]
    for seqs in (0, 3, len(lengths)):
        on_xla(a | {"num_seqs": integers(seqs)})
    new_tokens = starts.diff()
    on_xla(a | {"context_lens": torch.maximum(new_tokens, lengths - 3)})
    on_xla(a | {"query_start_loc": starts.clamp(max=30)})
    assert testing.compilations() == before


@EITHER_DTYPE
@pytest.mark.parametrize("lengths", [[(1, 5200)], [(40, 77)]], ids=["decode", "prefill"])
def test_row_depends_bit_for_bit_on_its_sequence_alone(lengths, dtype):
    alone = arguments(torch.Generator().manual_seed(0), lengths, dtype)
    new, context = lengths[0]
    others = {"query": torch.randn(9, 8, 64).to(dtype), "table": alone["block_tables"].flip(1).clamp(min=0)}
    batch = alone | {
        "query": torch.cat([others["query"], alone["query"], others["query"]]),
        "context_lens": integers(context, context, 1200),
        "block_tables": torch.cat([others["table"], alone["block_tables"], others["table"]]),
        "query_start_loc": integers(0, 9, 9 + new, 18 + new),
        "num_seqs": integers(3),
    }
    if len(alone["block_tables"][0]) * 16 < 1200:
        batch["context_lens"][2] = context
    assert torch.equal(on_xla(batch)[9 : 9 + new], on_xla(alone))


def by_decode(a: dict) -> list[bool]:
    """Whether the shapes make each sequence the decode kernel's on CUDA."""
    most = decode_tokens(a["query"], a["kv_cache"], a["context_lens"], a["block_tables"])
    return [new <= most for new in a["query_start_loc"][: a["num_seqs"] + 1].diff().tolist()]


def test_more_rows_are_those_of_decode():
    assert [b.name for b in MORE_ROWS if not all(by_decode(b.case().arguments()))] == []


@pytest.mark.parametrize(
    "batch",
    [
        b
        for b in BATCHES + FEW_TILES + MORE_ROWS + PREFILL_SPLITS + LSE_BATCHES
        if b.dtype != torch.float32 and b.lengths
    ],
    ids=lambda b: b.name,
)
def test_row_does_not_depend_on_the_number_of_work_tiles(batch):
    """On CUDA several CTAs compute each work tile if there are few, and each CTA several if there are many. Another
    order of sums shows in lse, which is float32, more than in results of 16 bits."""
    # Without sequences of padding, which the copies would have only once: how many tokens there are for each sequence
    # chooses the kernel for more than 16 rows.
    padding = (batch.options.get("padding", (0, 0))[0], 0)
    batch, copies = dataclasses.replace(batch, options=batch.options | {"padding": padding}), 45
    few = batch.case(has_lse=True).arguments()
    rows, platform = int(few["query_start_loc"].max()), platform_of(requested_device())
    many = repeated(few, copies)
    assert by_decode(many) == by_decode(few) * copies
    many = call_raw(paged_attention_lse, many, platform)[1]
    for got, want in zip(many, call_raw(paged_attention_lse, few, platform)[1], strict=True):
        assert torch.equal(got, torch.cat([*[want[:rows]] * copies, want[rows:]]))


def test_weights_of_any_size_are_exact():
    """e^x of the host's vector code, from x = 0 to its underflow: two keys with values 0 and 1, one of the logits 0."""
    x = -torch.linspace(0, 86, 400)
    count = len(x)
    cache = torch.zeros(2, count, 2, 1, 8)
    cache[0, :, 1, 0, 0], cache[1, :, 1] = x, 1
    a = {
        "query": torch.ones(count, 1, 8),
        "kv_cache": cache,
        "context_lens": integers(*[2] * count),
        "block_tables": torch.arange(count, dtype=torch.int32)[:, None],
        "query_start_loc": torch.arange(count + 1, dtype=torch.int32),
        "num_seqs": integers(count),
        "scale": 1.0,
    }
    want = torch.sigmoid(x.double())
    assert ((on_xla(a)[:, 0, 0].double() - want).abs() / want).max() < 4e-7
    # With a cap of 90 the logits are 90 tanh(x / 90): tanh near 0 and far from it.
    want = torch.sigmoid(90 * torch.tanh(x.double() / 90))
    assert ((on_xla(a | {"soft_cap": 90.0})[:, 0, 0].double() - want).abs() / want).max() < 4e-5


def test_transposed_and_sliced_operands():
    a = arguments(torch.Generator().manual_seed(0), RAGGED, torch.float32)
    want = testing.oracle(paged_attention, a)[0]
    import torch_xla

    device = torch_xla.device()
    views = {n: v.to(device) if torch.is_tensor(v) else v for n, v in a.items()}
    views["query"] = a["query"].transpose(0, 1).contiguous().to(device).transpose(0, 1)
    views["kv_cache"] = torch.cat([a["kv_cache"], a["kv_cache"]], dim=3).to(device)[:, :, :, 2:]
    views["block_tables"] = torch.cat([a["block_tables"], a["block_tables"]], dim=1).to(device)[
        :, : a["block_tables"].shape[1]
    ]
    compare("paged_attention", paged_attention(**views).cpu(), want)
