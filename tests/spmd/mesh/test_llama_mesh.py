"""examples/llama on a mesh: the same tokens as on one device; two sums over the devices per layer, nothing else."""

import dataclasses
import random
import re

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xla._dynamo import dynamo_bridge

import pyxla
from examples.llama.config import CONFIGS
from examples.llama.generate import generate
from examples.llama.runner import ModelRunner
from examples.llama.weights import load, random_weights
from pyxla.hlo.dump import executions
from pyxla.testing import compilations

TINY = CONFIGS["tiny"]
DEVICE = torch_xla.device()
MESH = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))


def runner_of(mode, mesh, config=TINY, fused_sums=None):
    weights = random_weights(config, 0, torch.float32)
    model = load(config, weights, torch.float32, DEVICE, mesh, fused_sums=fused_sums)
    return ModelRunner(model, mode=mode, max_seqs=3, max_length=96)


def prompts():
    """Prompts of several blocks of the cache, and of one token."""
    numbers = random.Random(0)
    first = [numbers.randrange(256) for _ in range(40)]
    return [first, [7], [*first[:37], 9]]


@pytest.fixture(scope="module")
def tokens_of_one_device():
    return generate(runner_of("direct", None), prompts(), 40)


@pytest.mark.parametrize("fused_sums", [True, False], ids=["op", "xla"])
@pytest.mark.parametrize("mode", ["direct", "compile"])
def test_same_tokens(mode, fused_sums, tokens_of_one_device):
    torch._dynamo.reset()
    assert generate(runner_of(mode, MESH, fused_sums=fused_sums), prompts(), 40) == tokens_of_one_device


@pytest.mark.parametrize("fused_sums", [True, False], ids=["op", "xla"])
@pytest.mark.parametrize("mode", ["direct", "compile"])
def test_a_step_exchanges_sums_alone(mode, fused_sums):
    """In the op, or in XLA's all-reduce."""
    torch._dynamo.reset()
    runner = runner_of(mode, MESH, fused_sums=fused_sums)
    with pyxla.inspecting() as seen:
        generate(runner, prompts(), 2)
    modules = [m for m in seen.modules if m.calls]
    # A prefill and a decode step.
    assert len(modules) == 2
    for module in modules:
        called = [call.target.removeprefix("xla_gpu_") for call in module.calls]
        assert called.count("paged_attention") == called.count("rotary_and_cache") == TINY.num_hidden_layers
        # A device's part: half of the four heads, of the two kv heads.
        (queries, caches) = (
            [c.operands[i].shape for c in module.calls if c.target.endswith(op)]
            for i, op in ((0, "paged_attention"), (3, "rotary_and_cache"))
        )
        assert all(re.search(r"\[\d+,2,16\]", shape) for shape in queries), queries
        assert all(shape.startswith("f32[2,18,16,1,16]") for shape in caches), caches
        assert not [copy for copy in module.copies if copy.shape.startswith("f32[2,18,16")]
        sums = re.findall(r" all-reduce(?:-start)?\(", module.after)
        assert called.count("fused_all_reduce_rms_norm") == fused_sums * 2 * TINY.num_hidden_layers
        assert len(sums) == (not fused_sums) * 2 * TINY.num_hidden_layers
        assert not re.search(r"all-to-all|collective-permute|reduce-scatter", module.after)
        # The logits of each device's part of the vocabulary, for the sequences' last rows, and nothing from a layer.
        assert all("[3," in line for line in re.findall(r"= (\S+) all-gather", module.after))


def test_a_compiled_step_is_one_graph_that_is_traced_once(monkeypatch):
    """Lengths and tokens are new tensors in every step; the caches are those that the previous step updated."""
    torch._dynamo.reset()
    runner = runner_of("compile", MESH)
    generate(runner, prompts(), 3)
    traced, trace = [], dynamo_bridge.extract_graph_helper
    monkeypatch.setattr(dynamo_bridge, "extract_graph_helper", lambda *given: traced.append(1) or trace(*given))
    run, compiled = executions(), compilations()
    generate(runner, [[7] * 50, [1] * 20], 20)
    assert executions() - run == 20
    assert not traced and compilations() == compiled


def test_heads_that_the_devices_do_not_divide():
    line = xs.Mesh(np.arange(4), (4,), ("model",))
    with pytest.raises(pyxla.ArgumentError) as caught:
        runner_of("direct", line)
    assert caught.value.message == "llama: num_key_value_heads: expected a size that 4 devices divide, got 2"
    wide = dataclasses.replace(TINY, num_key_value_heads=4)
    assert len(generate(runner_of("direct", line, wide), [[1, 2, 3]], 4)[0]) == 4
