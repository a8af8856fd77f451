"""A model on two devices: the tokens of one, two sums over the devices in a layer, each cache updated in place."""

import json
import re
import shutil

import pytest

import pyxla
from tests.vllm.engine import MARKS, MODES, engine, generate, prompts_of, runner_of
from tests.vllm.models import greedy, logits_of, make
from tests.vllm.tokens.test_float8 import SCALES, rounding, with_scales
from tests.vllm.tokens.test_fused_decoder import WIDE

pytestmark = MARKS
DEVICES, LAYERS, COUNT = 2, 2, 12
WHOLE = re.compile(r"= f32\[([\d,]+)\]\S* parameter\(\d+\), sharding={replicated}")
COLLECTIVE = re.compile(r"= (\S+) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def engine_of(folder, mode="compiled", **options):
    return engine(folder, mode, tensor_parallel_size=DEVICES, **options)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("llama", mode) for mode in MODES),
        # Norms of each head; a soft cap of the logits and windows; both; one weight for q, k and v; ALiBi.
        ("qwen3", "compiled"),
        ("gemma2", "direct"),
        ("gemma3", "direct"),
        ("phi3_longrope", "direct"),
        ("bloom", "direct"),
        # Experts; with one that sees every token; with sinks, biases, and gates and factors that take turns.
        ("mixtral", "compiled"),
        ("qwen2_moe", "direct"),
        ("gpt_oss", "direct"),
    ],
)
def test_tokens_are_those_of_transformers(folder_of, name, mode):
    folder, prompts = folder_of(name), prompts_of(5, 40, 90, 17)
    llm = engine_of(folder, mode)
    with pyxla.assert_no_recompilation(), pyxla.assert_no_fallback():
        tokens = generate(llm, prompts, COUNT)
    assert tokens == greedy(folder, prompts, COUNT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["llama3_rope", "qwen3", "mixtral"])
def test_a_step_exchanges_sums_alone(folder_of, name, mode):
    runner = runner_of(engine_of(folder_of(name), mode))
    with pyxla.inspecting() as seen:
        runner.run_smallest_step()
    (module,) = (module for module in seen.modules if module.calls)
    found = [(shape.split("{")[0], kind) for shape, kind in COLLECTIVE.findall(module.after)]
    rows, hidden = runner.buckets.all[0].tokens, runner.model.config.hidden_size
    padded = runner.model.lm_head.weight.shape[0]
    # That of the embedding, two in each layer, and the logits. The op adds products; a mixture of experts is none.
    in_op = [call for call in module.calls if call.target.endswith("fused_all_reduce_rms_norm")]
    assert len(in_op) == (LAYERS if name == "mixtral" else 2 * LAYERS)
    sums = (2 * LAYERS + 1 - len(in_op)) * [(f"f32[{rows},{hidden}]", "all-reduce")]
    assert found == [*sums, (f"f32[{runner.buckets.all[0].requests},{padded}]", "all-gather")]
    # All that each device has whole: norms, angles and the routers of experts.
    tensors = [*runner.model.named_parameters(), *runner.model.named_buffers()]
    small = {tuple(tensor.shape) for name, tensor in tensors if re.search(r"norm|cos_sin_cache|\.gate\.", name)}
    assert {tuple(map(int, sizes.split(","))) for sizes in WHOLE.findall(module.after)} == small
    # A device's cache has its heads, and no other is made.
    blocks, block_size, heads, head_size = runner.caches[0].shape[1:]
    part = f"f32[2,{blocks},{block_size},{heads // DEVICES},{head_size}]"
    stores = [call for call in module.calls if call.target.endswith("reshape_and_cache")]
    assert len(stores) == LAYERS and all(call.operands[2].shape.startswith(part) for call in stores)
    assert [copy for copy in module.copies if copy.shape.startswith(part)] == []
    assert len(module.aliases) == LAYERS


def test_xla_adds_if_asked_to(folder_of):
    """With vLLM's own option for what a platform adds."""
    folder, prompts = folder_of("llama"), prompts_of(5, 40)
    llm = engine_of(folder, additional_config={"fused_sums": False})
    runner = runner_of(llm)
    with pyxla.inspecting() as seen:
        runner.run_smallest_step()
    (module,) = (module for module in seen.modules if module.calls)
    assert [kind for _, kind in COLLECTIVE.findall(module.after)].count("all-reduce") == 2 * LAYERS + 1
    assert generate(llm, prompts, COUNT) == greedy(folder, prompts, COUNT)


@pytest.mark.parametrize("mode", MODES)
def test_a_float8_cache_with_scales(folder_of, tmp_path, mode):
    folder, prompts = folder_of("llama"), prompts_of(5, 37, 70)
    llm = engine_of(with_scales(folder, tmp_path / "scaled"), mode, kv_cache_dtype="fp8")
    assert generate(llm, prompts, COUNT) == greedy(folder, prompts, COUNT, rounding(SCALES))


def test_a_cache_is_split_before_the_first_step(folder_of, tmp_path):
    """Else each device would hold the whole until a step has split it. The scales are split like it."""
    import torch_xla

    split = torch_xla._XLAC._get_xla_sharding_spec

    runner = runner_of(engine_of(with_scales(folder_of("llama"), tmp_path / "scaled"), "direct", kv_cache_dtype="fp8"))
    runner._bind(runner.caches[0].dtype, dict.fromkeys(runner.kv_cache_spec(), 3))
    for layer in runner._layers.values():
        assert "[1,1,1,2,1]" in split(layer.kv_cache[0]) and "[1,2]" in split(layer.impl.kv_scales)


def test_requests_that_sample(folder_of):
    """In each way to sample, the likeliest of one token is the likeliest; log probabilities are those of one device."""
    from vllm import SamplingParams

    folder, prompts = folder_of("llama"), prompts_of(5, 40, 90, 17)
    llm = engine_of(folder)
    shared = {"max_tokens": COUNT, "ignore_eos": True}
    params = [
        SamplingParams(temperature=0, logprobs=2, **shared),
        SamplingParams(temperature=1, top_k=1, prompt_logprobs=1, **shared),
        SamplingParams(temperature=1, top_k=1, presence_penalty=1e-6, **shared),
        SamplingParams(temperature=1, top_p=1e-6, logit_bias={7: 1e-6}, **shared),
    ]
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    with pyxla.assert_no_recompilation():
        outputs = llm.generate(asked, params, use_tqdm=False)
    expected = greedy(folder, prompts, COUNT)
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected
    tokens = prompts[0] + expected[0]
    wanted = logits_of(folder, tokens).log_softmax(-1)[len(prompts[0]) - 1 : -1]
    for found, row, token in zip(outputs[0].outputs[0].logprobs, wanted, expected[0], strict=True):
        assert found[token].logprob == pytest.approx(row[token].item(), abs=1e-3)
    assert len(outputs[1].prompt_logprobs) == len(prompts[1])


def test_a_size_that_the_devices_do_not_divide(folder_of, tmp_path):
    folder = shutil.copytree(folder_of("llama"), tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": 65}))
    with pytest.raises(pyxla.PyxlaError) as caught:
        engine_of(folder, load_format="dummy")
    assert caught.value.message == (
        "vllm: tensor_parallel_size: expected a divisor of 65, the outputs of model.layers.0.mlp.gate_up_proj, got 2"
    )
    assert caught.value.hint == "--data-parallel-size: a whole model on each device"


def test_quantised_weights(folder_of):
    """vLLM's configuration has refused the methods that it names; a layer may have one of its own."""
    from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod

    from pyxla.vllm.sharding import shard

    model = runner_of(engine_of(folder_of("llama"), "direct")).model
    model.model.layers[1].mlp.down_proj.quant_method = Fp8LinearMethod.__new__(Fp8LinearMethod)
    with pytest.raises(pyxla.PyxlaError) as caught:
        shard(model)
    assert caught.value.message == "vllm: tensor_parallel_size: expected 1 for quantised weights, got 2"


def test_layers_are_not_fused(tmp_path, monkeypatch):
    from pyxla.vllm import fused_decoder

    monkeypatch.setattr(fused_decoder, "_has_code", lambda: True)
    folder = make("llama3_rope", tmp_path, **WIDE)
    assert type(runner_of(engine_of(folder, "direct", dtype="bfloat16")).model).__name__ == "LlamaForCausalLM"


def test_more_devices_than_there_are(folder_of):
    with pytest.raises(pyxla.PyxlaError) as caught:
        engine(folder_of("llama3_rope"), tensor_parallel_size=4)
    assert caught.value.message == "vllm: tensor_parallel_size: expected 2, the number of XLA's devices, got 4"
