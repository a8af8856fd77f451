"""XlaGpuAttention over a float8 PagedKVCache, against attention in float64 over keys and values rounded to float8."""

import copy

import pytest
import torch
import torch_xla
import torch_xla.runtime

import pyxla
from pyxla import ArgumentError
from pyxla.nn import PagedKVCache, XlaGpuAttention, in_mode, xla_gpu_paged_attention
from tests.nn_served import DEVICE, HEADS, KV_HEADS, SCALE, D, Served, attention, rounded

FLOAT8 = torch.float8_e4m3fn
MODES = pytest.mark.parametrize("mode", ["direct", "compile"])
# One for each layer, keys or values, and head; far from 1, and with the smallest some numbers saturate at 448.
SCALES = torch.tensor([[[0.25, 3.0], [0.004, 0.7]], [[17.0, 0.01], [0.3, 0.09]]])


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Dynamo counts recompilations per code object, and all layers share theirs."""
    torch._dynamo.reset()


@MODES
@pytest.mark.parametrize("scales", [None, SCALES], ids=["ones", "scaled"])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 3, "soft_cap": 1.5}], ids=str)
def test_layer_over_mixed_steps(mode, scales, options):
    served = Served(mode, dtype=FLOAT8, scales=scales, **options)
    first, second = served.open(), served.open()
    for batch in ([(first, 7)], [(first, 1), (second, 6)], [(second, 5), (first, 1)], [(first, 1), (second, 1)]):
        assert served.step(batch)[0] < 1e-5
    if scales is not None:
        stored = served.cache.layers[0].cpu().float()
        assert (stored[1, :, :, 0].abs() == 448).any() and (stored[1, :, :, 1].abs() < 10).all()


def test_both_modes_give_the_same_bits():
    outs, caches = {}, {}
    for mode in ("direct", "compile"):
        served = Served(mode, dtype=FLOAT8, scales=SCALES)
        _, arguments = served.step([(served.open(), 7)])
        outs[mode] = [out.cpu() for out in served.trace(*arguments)]
        caches[mode] = [layer.cpu().view(torch.uint8) for layer in served.cache.layers]
    for of_modes in (outs, caches):
        assert all(torch.equal(a, b) for a, b in zip(*of_modes.values(), strict=True))


@MODES
def test_the_cache_is_updated_without_a_copy(mode):
    served = Served(mode, dtype=FLOAT8, scales=SCALES)
    _, arguments = served.step([(served.open(), 7)])
    seen = pyxla.inspect(in_mode(served.trace, mode), *arguments)
    for op, cache, scales in (("reshape_and_cache", 2, 4), ("paged_attention", 1, -1)):
        calls = [call for call in seen.calls() if call.target == f"xla_gpu_{op}"]
        assert len(calls) == 2
        for call in calls:
            assert call.operands[cache].shape.startswith(f"f8e4m3fn[2,16,4,{KV_HEADS},{D}]")
            assert call.operands[scales].shape.startswith(f"f32[2,{KV_HEADS}]")
    pyxla.assert_no_copies(seen)


@MODES
def test_other_lengths_compile_nothing(mode):
    served = Served(mode, dtype=FLOAT8, scales=SCALES)
    first, second = served.open(), served.open()
    served.step([(first, 7)])
    with pyxla.assert_no_recompilation():
        served.step([(second, 3), (first, 4)])


@MODES
def test_a_shared_prefix_and_a_fork(mode):
    served = Served(mode, dtype=FLOAT8, scales=SCALES)
    prompt = list(range(9))
    first = served.open(prompt)
    served.step([(first, 5)])
    served.step([(first, 4)])
    second = served.open([*prompt[:8], 77], like=first)
    assert second.length == 8 and list(second.blocks) == list(first.blocks[:2])
    assert served.step([(second, 1), (first, 1)])[0] < 1e-5
    child = served.fork(first)
    # Tokens of both in one step: the block that they share is copied first.
    for batch in ([(first, 1), (child, 1)], [(child, 5)], [(first, 3), (second, 1)]):
        assert served.step(batch)[0] < 1e-5
    assert child.blocks[1] == first.blocks[1] and child.blocks[2] != first.blocks[2]


def test_a_block_is_copied_in_place_bit_for_bit():
    """All 256 bytes: zeros of both signs, subnormal numbers, NaN."""
    cache = PagedKVCache(2, 8, 4, KV_HEADS, D, dtype=FLOAT8)
    every = torch.arange(256, dtype=torch.uint8).repeat(4).view(2, 8, 4, KV_HEADS, D)
    before = [layer.copy_(every.view(FLOAT8)).cpu().view(torch.uint8) for layer in cache.layers]
    with pyxla.inspecting(private=False) as seen:
        for source, target in ((0, 6), (1, 7), (2, 4), (3, 5)):
            cache._copy_block(source, target)
    pyxla.assert_custom_calls(seen, "reshape_and_cache", 2)
    pyxla.assert_no_copies(seen)
    for layer, old in zip(cache.layers, before, strict=True):
        old[:, [6, 7, 4, 5]] = old[:, [0, 1, 2, 3]]
        new = layer.cpu().view(torch.uint8)
        if torch_xla.runtime.device_type() == "CUDA":
            # On CUDA the conversion to float32 and back drops the sign of a NaN.
            old, new = (bits.where(bits != 0xFF, 0x7F) for bits in (old, new))
        assert torch.equal(new, old)


@MODES
def test_function(mode):
    torch.manual_seed(1)
    query, given = torch.randn(2, HEADS, D), torch.randn(3, 2, KV_HEADS, D)
    kv_cache = torch.zeros(2, 2, 4, KV_HEADS, D)
    kv_cache[:, 1, :3] = (given / SCALES[0][:, :, None]).clamp(-448, 448).transpose(0, 1)

    names = ("context_lens", "block_tables", "query_start_loc", "num_seqs")
    tensors = {n: torch.tensor(v, dtype=torch.int32) for n, v in zip(names, ([3], [[1]], [0, 2], [1]), strict=True)}
    tensors |= {"query": query, "kv_cache": kv_cache.to(FLOAT8), "kv_scales": SCALES[0]}
    call = in_mode(lambda named: xla_gpu_paged_attention(scale=SCALE, **named), mode)
    got = call({name: tensor.to(DEVICE) for name, tensor in tensors.items()}).cpu()
    want = attention(query, *rounded(given, SCALES[0]).unbind(1))
    torch.testing.assert_close(got, want.float(), rtol=0, atol=1e-5)


def test_scales_move_with_the_layer_and_lie_in_its_state():
    layer = XlaGpuAttention(HEADS, D, SCALE, KV_HEADS, kv_scales=SCALES[0])
    assert list(layer.state_dict()) == ["kv_scales"] and layer.to(DEVICE).kv_scales.device == DEVICE
    other = XlaGpuAttention(HEADS, D, SCALE, KV_HEADS, kv_scales=torch.ones(2, KV_HEADS))
    other.load_state_dict({"kv_scales": SCALES[1]})
    assert torch.equal(other.kv_scales, SCALES[1])
    assert not XlaGpuAttention(HEADS, D, SCALE, KV_HEADS).state_dict()


@pytest.mark.parametrize(
    "cast", [lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.to(DEVICE, torch.half)]
)
def test_a_cast_of_the_model_leaves_the_scales(cast):
    """Cast with the weights, the scales would make the op reject the layer. 1/3 has different bits in each dtype."""
    scales = torch.full((2, KV_HEADS), 1 / 3)
    layer = XlaGpuAttention(HEADS, D, SCALE, KV_HEADS, kv_scales=scales.clone())
    model = cast(torch.nn.Sequential(layer, torch.nn.Linear(2, 2)))
    assert layer.kv_scales.device == model[1].weight.device and model[1].weight.dtype != torch.float32
    assert torch.equal(layer.kv_scales.cpu(), scales) and list(layer.state_dict()) == ["kv_scales"]


@MODES
def test_a_copy_of_a_layer_has_its_own_scales(mode):
    """In mode "compile" the copy's function must not be bound to the original layer, whose scales it would use."""
    served = Served(mode, dtype=FLOAT8, scales=SCALES)
    served.step([(served.open(), 2)])
    served.layers[1] = copy.deepcopy(served.layers[0])
    served.layers[1].kv_scales.copy_(SCALES[1])
    assert served.step([(served.open(), 7)])[0] < 1e-5


def call_layer(scales, dtype=FLOAT8):
    cache = PagedKVCache(1, 4, 4, KV_HEADS, D, dtype=dtype)
    metadata = cache.extend([(cache.open(), 3)], tokens=4, seqs=1, max_blocks=1)
    tensors = [torch.ones(4, heads, D).to(DEVICE) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    layer = XlaGpuAttention(HEADS, D, SCALE, KV_HEADS, kv_scales=scales)
    return layer(*tensors, cache.layers[0], metadata)


def scales_of(*numbers):
    return torch.tensor(numbers).view(2, KV_HEADS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: call_layer(SCALES[0].double()), "XlaGpuAttention: kv_scales: expected dtype float32, got float64"),
        (lambda: call_layer(SCALES[0, 0]), "XlaGpuAttention: kv_scales: expected shape (2, 2), got (2,)"),
        (lambda: call_layer(torch.ones(2, HEADS)), "XlaGpuAttention: kv_scales: expected shape (2, 2), got (2, 4)"),
        (
            lambda: call_layer(scales_of(1.0, 2.0, -1.0, 3.0)),
            "XlaGpuAttention: kv_scales: expected finite numbers above 0, got -1.0",
        ),
        (
            lambda: call_layer(scales_of(1.0, torch.inf, 1.0, 0.0)),
            "XlaGpuAttention: kv_scales: expected finite numbers above 0, got inf",
        ),
        (
            lambda: call_layer(SCALES[0].to(DEVICE), torch.float32),
            "reshape_and_cache: kv_scales: expected none, as kv_cache is not float8_e4m3fn, got a tensor",
        ),
        (
            lambda: call_layer(SCALES[0]),
            "reshape_and_cache: kv_scales: expected a tensor on xla, as the others are, got cpu",
        ),
        (
            lambda: PagedKVCache(1, 4, 4, KV_HEADS, D, dtype=torch.float8_e5m2),
            "PagedKVCache: dtype: expected float32 or bfloat16 or float16 or float8_e4m3fn, got float8_e5m2",
        ),
    ],
)
def test_wrong_scales_and_dtypes(call, message):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.message == message
    torch_xla.sync()
