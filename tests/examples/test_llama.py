"""examples/llama from end to end: tokens and logits equal those of transformers, in both modes, for any batch."""

import dataclasses
import math
import random

import pytest
import torch
import torch_xla
import torch_xla.runtime
from torch_xla.backends import set_mat_mul_precision

import pyxla
from benchmarks.bench_decode_step import bytes_read
from examples.llama.config import CONFIGS
from examples.llama.generate import generate, stream
from examples.llama.runner import ModelRunner
from examples.llama.weights import hf_shapes, load
from pyxla import hlo
from pyxla.hlo import text as hlo_text
from pyxla.hlo.dump import executions
from pyxla.nn import PagedKVCache
from tests.llama_reference import float8_cache, logits, reference, tensors

DEVICE = torch_xla.device()
if torch_xla.runtime.device_type() == "CUDA":
    # Otherwise XLA rounds the operands of float32 products to TF32.
    set_mat_mul_precision("highest")
TINY = CONFIGS["tiny"]
PREFILL_AND_DECODE = 2
MODES = pytest.mark.parametrize("mode", ["direct", "compile"])


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def weights():
    return tensors(TINY)


@pytest.fixture(scope="module")
def model(weights):
    return load(TINY, weights.__getitem__, torch.float32, DEVICE)


@pytest.fixture(scope="module")
def theirs(weights):
    return reference(TINY, weights)


def prompts(count=8):
    """Prompts of one token, less than a block of the cache, and several blocks; the last two begin as others do."""
    numbers = random.Random(0)
    made = [[numbers.randrange(256) for _ in range(length)] for length in (5, 70, 1, 33, 120, 17)]
    return [*made, [*made[4][:70], 7], made[4][:17]][:count]


def runner_of(model, mode, **changes):
    return ModelRunner(model, mode=mode, **{"max_seqs": 8, "max_length": 320} | changes)


@MODES
def test_greedy_tokens_are_those_of_transformers(mode, model, theirs):
    """Each of 200 tokens is the likeliest after the prompt and the tokens before it, by transformers' logits."""
    runner = runner_of(model, mode)
    outputs = generate(runner, prompts(), 200)
    for prompt, output in zip(prompts(), outputs, strict=True):
        assert len(output) == 200 and len(set(output)) > 90
        expected = logits(theirs, prompt + output)[len(prompt) - 1 : -1]
        first, second = expected.topk(2).values.unbind(-1)
        # Both sides round: if the two likeliest were closer than this, their order would mean nothing.
        assert (first - second).min() > 1e-3
        assert output == expected.argmax(-1).tolist()
    assert runner.cache.free_blocks == runner.cache.num_blocks


def test_greedy_tokens_are_those_that_transformers_generates(model, theirs):
    """The same tokens as transformers' own generation with its cache."""
    prompt = prompts()[0]
    expected = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=200,
        do_sample=False,
        pad_token_id=0,
    )[0, len(prompt) :]
    (output,) = generate(runner_of(model, "compile"), [prompt], 200)
    assert output == expected.tolist()


def traced_logits(config, weights, dtype, tokens, cache_dtype=None, **options):
    """[tokens, vocabulary] of one text, in one step, on the device."""
    model = load(config, weights.__getitem__, dtype, DEVICE, **options)
    cache = PagedKVCache(
        config.num_hidden_layers,
        64,
        8,
        config.num_key_value_heads,
        config.head_dim,
        dtype=cache_dtype or dtype,
    )
    metadata = cache.extend([(cache.open(), len(tokens))], tokens=len(tokens), seqs=1, max_blocks=64)
    rows = [torch.tensor(numbers, dtype=torch.int32).to(DEVICE) for numbers in (tokens, range(len(tokens)))]
    return model.logits(model(*rows, cache.layers, metadata))


def our_logits(*arguments):
    """The same on the CPU, in float64."""
    return traced_logits(*arguments).cpu().double()


@pytest.mark.parametrize("deviation", [0.02, 0.25])
def test_logits_in_bfloat16(deviation):
    """Compared with transformers in float64 with the same bfloat16 weights.

    With weights as Hugging Face draws them (deviation 0.02) logits reach 0.7, and their mean error is below 1e-3. The
    largest error cannot be below that: rounding a logit of 0.5 to bfloat16 changes it by up to 2e-3. With weights that
    make attention matter logits reach 9, so the limit is the error of transformers itself in bfloat16.
    """
    config = dataclasses.replace(TINY, initializer_range=deviation)
    weights = tensors(config, torch.bfloat16)
    numbers = random.Random(0)
    tokens = [numbers.randrange(256) for _ in range(200)]
    exact = logits(reference(config, weights, torch.float64), tokens)
    error = (our_logits(config, weights, torch.bfloat16, tokens) - exact).abs()
    their_error = (logits(reference(config, weights, torch.bfloat16), tokens).double() - exact).abs()
    assert error.mean() <= 1.1 * their_error.mean()
    assert error.max() <= 1.5 * their_error.max()
    if deviation == 0.02:
        assert 0.5 < exact.abs().max() < 1 and error.mean() < 1e-3
    ours_in_float32 = (our_logits(config, weights, torch.float32, tokens) - exact).abs().max()
    assert ours_in_float32 < 1e-5 * exact.abs().max()


# A shape that fused_decoder_layer takes.
FUSED_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 64,
    "initializer_range": 0.1,
}
ROTARY_CALLS = {"fused_decoder_layer": 1, "fused_decoder_layer_rotary": 3, "rotary_and_cache": 1}
FUSED_CALLS = {"fused_decoder_layer": 4, "fused_decoder_layer_rotary": 0, "rotary_and_cache": 4}


@pytest.mark.parametrize(
    ("heads", "head_dim", "options", "calls"),
    [
        (4, 64, {}, ROTARY_CALLS),
        (4, 64, {"fused_rotary": False}, FUSED_CALLS),
        # fused_decoder_layer_rotary does not take heads of 16.
        (16, 16, {}, FUSED_CALLS),
    ],
)
def test_logits_with_what_lies_between_attentions_in_one_op(heads, head_dim, options, calls):
    """As above, for sizes that the op takes: each layer has one call of it after its attention."""
    config = dataclasses.replace(TINY, **FUSED_SIZES | {"num_attention_heads": heads, "head_dim": head_dim})
    weights = tensors(config, torch.bfloat16)
    tokens = [(7 * i) % 256 for i in range(60)]
    exact = logits(reference(config, weights, torch.float64), tokens)
    ours = traced_logits(config, weights, torch.bfloat16, tokens, fused=True, **options)
    module = hlo.lowered([ours])
    assert {name: len(hlo_text.custom_calls(module, f"xla_gpu_{name}")) for name in calls} == calls
    error = (ours.cpu().double() - exact).abs()
    their_error = (logits(reference(config, weights, torch.bfloat16), tokens).double() - exact).abs()
    assert error.mean() <= 1.1 * their_error.mean()
    assert error.max() <= 1.5 * their_error.max()


def test_logits_with_a_float8_cache(weights):
    """Compared with transformers in float64, with a cache also rounded to float8."""
    tokens = [(7 * i) % 256 for i in range(100)]
    exact = reference(TINY, weights, torch.float64)
    got = our_logits(TINY, weights, torch.float32, tokens, torch.float8_e4m3fn)
    want = logits(exact, tokens, float8_cache())
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * want.abs().max().item())
    # The effect of the rounding is far above this tolerance.
    assert (want - logits(exact, tokens)).abs().max() > 1e-2 * want.abs().max()


def test_logits_with_stretched_rotations_and_tied_embeddings():
    """Scaled rotations as in Llama 3.1 and 3.2; positions beyond the original length."""
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 64}
    config = dataclasses.replace(TINY, rope=rope, tie_word_embeddings=True)
    weights = tensors(config)
    assert "lm_head.weight" not in weights
    tokens = [(7 * i) % 256 for i in range(300)]
    expected = logits(reference(config, weights, torch.float64), tokens)
    torch.testing.assert_close(our_logits(config, weights, torch.float32, tokens), expected, rtol=0, atol=2e-4)
    plain = dataclasses.replace(config, rope={"rope_type": "default"})
    assert (our_logits(plain, weights, torch.float32, tokens) - expected).abs().max() > 0.1


@MODES
@pytest.mark.parametrize("dtype", [None, pytest.param(torch.float8_e4m3fn, marks=pytest.mark.slow)], ids=str)
def test_a_step_copies_no_cache(mode, dtype, model):
    """Neither on this device nor as XLA:CUDA compiles it, where one call takes the qkv projection's output."""
    runner = runner_of(model, mode, kv_cache_dtype=dtype)
    with pyxla.inspecting() as seen:
        generate(runner, prompts(), 2)
    calls = PREFILL_AND_DECODE * TINY.num_hidden_layers
    for modules in (seen, pyxla.compiled_for(seen, "H200")) if seen.device == "CPU" else (seen,):
        for op in ("rotary_and_cache", "paged_attention", "silu_and_mul"):
            pyxla.assert_custom_calls(modules, op, calls)
        pyxla.assert_custom_calls(modules, "fused_add_rms_norm", 2 * calls)
        pyxla.assert_no_copies(modules, "rotary_and_cache")


@MODES
def test_one_op_between_attentions_generates(mode):
    """Batches with padding, as on a GPU: no copy of a cache or of the residual stream, and each prompt gets the same
    tokens as alone.
    """
    config = dataclasses.replace(TINY, **FUSED_SIZES)
    model = load(config, tensors(config, torch.bfloat16).__getitem__, torch.bfloat16, DEVICE, fused=True)
    runner, few = runner_of(model, mode), [prompt[:12] for prompt in prompts(5)]
    with pyxla.inspecting() as seen:
        together = generate(runner, few, 20)
    for modules in (seen, pyxla.compiled_for(seen, "H200")) if seen.device == "CPU" else (seen,):
        for op, calls in ROTARY_CALLS.items():
            pyxla.assert_custom_calls(modules, op, calls * PREFILL_AND_DECODE)
            pyxla.assert_no_copies(modules, op)
    assert together == [generate(runner, [prompt], 20)[0] for prompt in few]


@MODES
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_step_is_one_graph(mode, temperature, model):
    """No other graph runs before it, such as for a view of an input, or after it."""
    runner = runner_of(model, mode, temperature=temperature)
    generate(runner, [[1, 2, 3]], 2)
    before = executions()
    generate(runner, [[1, 2, 3]], 10)
    assert executions() - before == 10


@MODES
def test_other_prompts_compile_nothing(mode, model):
    """Lengths, tokens and the number of prompts are data, as long as the prefill has the same bucket."""
    runner = runner_of(model, mode)
    first = generate(runner, prompts(), 20)
    with pyxla.assert_no_recompilation(), pyxla.assert_no_fallback():
        generate(runner, [[7] * 290, [1]], 30)
        assert generate(runner, prompts(), 20) == first


def test_prompts_over_a_float8_cache(model):
    """The same tokens in both modes and for each prompt alone; others than without it."""
    runners = [runner_of(model, mode, kv_cache_dtype=torch.float8_e4m3fn) for mode in ("direct", "compile")]
    direct, compiled = (generate(runner, prompts(), 40) for runner in runners)
    assert direct == compiled
    assert [generate(runners[0], [prompt], 40)[0] for prompt in prompts()] == direct
    assert generate(runner_of(model, "direct"), prompts(), 40) != direct


def test_a_text_ends_with_its_stop_token(model):
    runner = runner_of(model, "compile")
    whole, beside = generate(runner, prompts(2), 40)
    stop = whole[12]
    length = whole.index(stop) + 1
    assert stop not in beside
    assert generate(runner, prompts(2), 40, [stop]) == [whole[:length], beside]


def test_the_last_text_that_ends_ends_the_batch(model):
    runner = runner_of(model, "compile")
    (whole,) = generate(runner, prompts(1), 40)
    before = executions()
    assert generate(runner, prompts(1), 40, [whole[0]]) == [whole[:1]]
    # The prefill, and the step that was submitted before its token was read.
    assert executions() - before == 2
    assert runner.cache.free_blocks == runner.cache.num_blocks


def test_tokens_come_step_by_step(model):
    runner = runner_of(model, "direct")
    steps = [*stream(runner, prompts(2), 5)]
    assert [*map(list, zip(*steps, strict=True))] == generate(runner, prompts(2), 5)


def test_what_decoding_has_to_read(model):
    """Every weight except the embedding, of which only rows are read, and keys and values up to the position."""
    weights = sum(math.prod(shape) for name, shape in hf_shapes(TINY).items() if "embed_tokens" not in name)
    per_token = 2 * TINY.num_hidden_layers * TINY.num_key_value_heads * TINY.head_dim
    assert bytes_read(runner_of(model, "direct"), 1000) == 4 * (weights + 1000 * per_token)
