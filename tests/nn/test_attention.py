"""XlaGpuAttention, PagedKVCache and xla_gpu_paged_attention in both modes, against attention in float64."""

import inspect

import pytest
import torch
import torch_xla

import pyxla
from pyxla import ArgumentError, PyxlaError
from pyxla.nn import AttentionMetadata, PagedKVCache, XlaGpuAttention, attention_mode, in_mode, xla_gpu_paged_attention
from tests.nn_served import DEVICE, HEADS, KV_HEADS, SCALE, D, Served, attention

MODES = pytest.mark.parametrize("mode", ["direct", "compile"])


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Dynamo counts recompilations per code object, and all layers share theirs."""
    torch._dynamo.reset()


@MODES
@pytest.mark.parametrize("options", [{}, {"sliding_window": 3}, {"soft_cap": 1.5}], ids=str)
def test_layer_over_mixed_steps(mode, options):
    served = Served(mode, **options)
    first, second = served.open(), served.open()
    for batch in ([(first, 7)], [(first, 1), (second, 6)], [(second, 5), (first, 1)], [(first, 1), (second, 1)]):
        assert served.step(batch)[0] < 1e-5


def test_both_modes_give_the_same_bits():
    outs = {}
    for mode in ("direct", "compile"):
        served = Served(mode)
        _, arguments = served.step([(served.open(), 7)])
        outs[mode] = [out.cpu() for out in served.trace(*arguments)]
    assert all(torch.equal(a, b) for a, b in zip(*outs.values(), strict=True))


@MODES
def test_the_cache_is_updated_without_a_copy(mode):
    served = Served(mode)
    _, arguments = served.step([(served.open(), 7)])
    seen = pyxla.inspect(in_mode(served.trace, mode), *arguments)
    pyxla.assert_custom_calls(seen, "reshape_and_cache", 2)
    pyxla.assert_custom_calls(seen, "paged_attention", 2)
    pyxla.assert_no_copies(seen)


@MODES
def test_without_keys_and_values_the_cache_is_only_read(mode):
    """A second layer reads the first one's cache: three new tokens after five see the same as in the writing layer."""
    served = Served(mode)
    sequence = served.open()
    served.step([(sequence, 5)])
    worst, (query, key, value, metadata) = served.step([(sequence, 3)])
    assert worst < 1e-5
    writer, reader = served.layers
    kv_cache = served.cache.layers[0]
    before = kv_cache.cpu()
    seen = pyxla.inspect(in_mode(lambda q, kv: reader(q, None, None, kv, metadata), mode), query, kv_cache)
    assert [call.target for call in seen.calls()] == ["xla_gpu_paged_attention"]
    got = reader(query, None, None, kv_cache, metadata).cpu()
    assert torch.equal(kv_cache.cpu(), before)
    assert torch.equal(got, writer(query, key[0], value[0], kv_cache, metadata).cpu()) and bool(got[:3].any())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("key",), "XlaGpuAttention: value: expected a tensor, as key is, got None"),
        (("value",), "XlaGpuAttention: value: expected None, as key is, got a tensor"),
    ],
)
def test_a_key_without_a_value(given, message):
    served = Served("direct")
    _, (query, key, value, metadata) = served.step([(served.open(), 7)])
    both = {"key": key[0], "value": value[0]}
    key_and_value = {name: tensor if name in given else None for name, tensor in both.items()}
    before = served.cache.layers[0].cpu()
    with pytest.raises(ArgumentError) as caught:
        served.layers[0](query, **key_and_value, kv_cache=served.cache.layers[0], metadata=metadata)
    assert caught.value.message == message
    assert torch.equal(served.cache.layers[0].cpu(), before)


@MODES
def test_other_lengths_compile_nothing(mode):
    served = Served(mode)
    first, second = served.open(), served.open()
    served.step([(first, 7)])
    with pyxla.assert_no_recompilation():
        served.step([(second, 3), (first, 4)])
        served.step([(first, 1), (second, 1)])


@MODES
def test_a_forked_sequence_is_copied_when_it_is_written(mode):
    served = Served(mode)
    parent = served.open()
    served.step([(parent, 6)])
    child = served.fork(parent)
    assert list(child.blocks) == list(parent.blocks)
    # Tokens of both in one step, then more of each: neither sequence sees the other's.
    for batch in ([(parent, 1), (child, 1)], [(child, 5)], [(parent, 3), (child, 1)]):
        assert served.step(batch)[0] < 1e-5
    assert child.blocks[0] == parent.blocks[0] and not set(child.blocks[1:]) & set(parent.blocks[1:])


def test_a_block_is_copied_in_place():
    cache = PagedKVCache(3, 8, 4, KV_HEADS, D, dtype=torch.float32)
    before = [layer.copy_(torch.randn(layer.shape)).cpu() for layer in cache.layers]
    with pyxla.inspecting(private=False) as seen:
        cache._copy_block(2, 5)
    pyxla.assert_custom_calls(seen, "reshape_and_cache", 3)
    pyxla.assert_no_copies(seen)
    for layer, old in zip(cache.layers, before, strict=True):
        old[:, 5] = old[:, 2]
        assert torch.equal(layer.cpu(), old)
    with pyxla.assert_no_recompilation():
        cache._copy_block(1, 7)


def test_a_call_on_the_result_of_a_step_in_flight():
    """`await_uploads` must not request the buffer of a tensor whose step is still running: torch_xla would raise."""
    x = (torch.randn(1000, 1000) / 32).to(DEVICE)

    def product():
        result = x
        for _ in range(10):
            result = result @ x
        return result

    torch.ops.xla_gpu.silu_and_mul(product()).cpu()
    result = product()
    torch_xla.sync()
    assert torch_xla._XLAC._is_placecholder(result)
    got = torch.ops.xla_gpu.silu_and_mul(result).cpu()
    torch.testing.assert_close(got, torch.ops.xla_gpu.silu_and_mul(result.cpu()))


def test_the_function_has_the_names_of_vllm():
    parameters = inspect.signature(xla_gpu_paged_attention).parameters
    names = "query kv_cache context_lens block_tables query_start_loc num_seqs scale sliding_window soft_cap"
    # vLLM's layers have one k_scale and one v_scale for all heads.
    assert list(parameters) == [*names.split(), "kv_scales"]
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())


@MODES
def test_function(mode):
    torch.manual_seed(1)
    query, kv_cache = torch.randn(3, HEADS, D), torch.randn(2, 5, 4, KV_HEADS, D)

    def call(query, kv_cache, lengths, tables, starts, count):
        return xla_gpu_paged_attention(
            query=query,
            kv_cache=kv_cache,
            context_lens=lengths,
            block_tables=tables,
            query_start_loc=starts,
            num_seqs=count,
            scale=SCALE,
            sliding_window=4,
            soft_cap=2.0,
        )

    numbers = ([6, 3], [[4, 1], [2, 0]], [0, 2, 3], [2])
    integers = [torch.tensor(n, dtype=torch.int32).to(DEVICE) for n in numbers]
    got = in_mode(call, mode)(query.to(DEVICE), kv_cache.to(DEVICE), *integers).cpu()
    keys, values = kv_cache[:, [4, 1]].flatten(1, 2)[:, :6]
    torch.testing.assert_close(got[:2], attention(query[:2], keys, values, 4, 2.0).float(), rtol=0, atol=1e-5)
    keys, values = kv_cache[:, 2, :3]
    torch.testing.assert_close(got[2:], attention(query[2:], keys, values, 4, 2.0).float(), rtol=0, atol=1e-5)


def test_mode(monkeypatch):
    monkeypatch.delenv("PYXLA_ATTENTION_MODE", raising=False)
    assert attention_mode() == XlaGpuAttention(4, 8, 1.0).mode == "direct"
    monkeypatch.setenv("PYXLA_ATTENTION_MODE", "compile")
    assert attention_mode() == XlaGpuAttention(4, 8, 1.0).mode == "compile"
    assert attention_mode("direct") == "direct"
    monkeypatch.setenv("PYXLA_ATTENTION_MODE", "eager")
    message = "attention_mode: PYXLA_ATTENTION_MODE: expected direct or compile, got eager\n\nhint: "
    with pytest.raises(ArgumentError, match=message):
        XlaGpuAttention(4, 8, 1.0)
    with pytest.raises(ArgumentError, match="attention_mode: mode: expected direct or compile, got "):
        XlaGpuAttention(4, 8, 1.0, mode="")


def cache(**changes):
    sizes = {"num_layers": 1, "num_blocks": 4, "block_size": 4, "num_kv_heads": 2, "head_size": 8} | changes
    return PagedKVCache(**sizes)


def extend(count, tokens=8, seqs=2, max_blocks=4, times=1):
    paged = cache()
    sequence = paged.open()
    return paged.extend([(sequence, count)] * times, tokens=tokens, seqs=seqs, max_blocks=max_blocks)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cache(num_layers=0), "num_layers: expected a count of 1 or more, got 0"),
        (lambda: cache(num_blocks=0), "num_blocks: expected a count of 1 or more, got 0"),
        (lambda: cache(block_size=512), "block_size: expected at most 256, got 512"),
        (lambda: cache(num_kv_heads=0), "num_kv_heads: expected a count of 1 or more, got 0"),
        (lambda: cache(head_size=12), "head_size: expected one of 8, 16, ... 256, got 12"),
        (lambda: cache(dtype=torch.int8), "dtype: expected float32 or bfloat16 or float16 or float8_e4m3fn, got int8"),
        (lambda: extend(0, tokens=0), "tokens: expected a count of 1 or more, got 0"),
        (lambda: extend(0, max_blocks=0), "max_blocks: expected a count of 1 or more, got 0"),
        (lambda: extend(9), "batch: expected at most 8 new tokens, got 9"),
        (lambda: extend(1, times=3), "batch: expected at most 2 sequences, got 3"),
        (lambda: extend(1, times=2), "batch: expected each sequence once, got 1 again"),
        (lambda: extend(5, max_blocks=1), "batch: expected at most 1 blocks of a sequence, got 2"),
        (lambda: extend(17, tokens=32, max_blocks=9), "blocks: expected 5 that are free, got 4"),
    ],
)
def test_wrong_sizes(call, message):
    with pytest.raises(PyxlaError) as caught:
        call()
    assert caught.value.message == f"PagedKVCache: {message}"


def test_heads_that_do_not_divide():
    with pytest.raises(ArgumentError, match="XlaGpuAttention: num_heads: expected a positive multiple of 3 kv heads"):
        XlaGpuAttention(4, 8, 1.0, 3)


def test_a_full_cache_changes_nothing():
    """The second of two sequences does not fit: the first is not extended either."""
    paged = cache()
    first, second = paged.open(), paged.open()
    paged.extend([(first, 3)], tokens=16, seqs=2, max_blocks=4)
    with pytest.raises(PyxlaError, match="blocks: expected 4 that are free, got 3"):
        paged.extend([(first, 2), (second, 9)], tokens=16, seqs=2, max_blocks=4)
    assert (first.length, second.length, paged.free_blocks) == (3, 0, 3)


def test_padding_of_a_step():
    paged = cache()
    sequence = paged.open()
    got = paged.extend([(sequence, 5)], tokens=7, seqs=3, max_blocks=2)
    assert isinstance(got, AttentionMetadata)
    assert got.slot_mapping.tolist() == [0, 1, 2, 3, 4, -1, -1]
    assert got.context_lens.tolist() == [5, 0, 0]
    assert got.block_tables.tolist() == [[0, 1], [0, 0], [0, 0]]
    assert got.query_start_loc.tolist() == [0, 5, 5, 5]
    assert got.num_seqs.tolist() == [1]
