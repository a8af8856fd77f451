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
from examples.llama.engine import Engine
from examples.llama.scheduler import Request
from examples.llama.weights import load, random_weights
from pyxla.hlo.dump import executions

TINY = CONFIGS["tiny"]
DEVICE = torch_xla.device()
MESH = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))


def engine_of(mode, mesh, config=TINY):
    model = load(config, random_weights(config, 0, torch.float32), torch.float32, DEVICE, mesh)
    return Engine(model, mode=mode, num_blocks=24, max_seqs=3, max_step_tokens=16, max_length=96)


def requests():
    """Prompts of several chunks, of one token, and with the first one's prefix: blocks are shared, one is copied."""
    numbers = random.Random(0)
    first = [numbers.randrange(256) for _ in range(40)]
    return [Request(first, 24), Request([7], 40), Request([*first[:37], 9], 12)]


@pytest.fixture(scope="module")
def tokens_of_one_device():
    return engine_of("direct", None).generate(requests())


@pytest.mark.parametrize("mode", ["direct", "compile"])
def test_same_tokens(mode, tokens_of_one_device):
    torch._dynamo.reset()
    engine = engine_of(mode, MESH)
    assert engine.generate(requests()) == tokens_of_one_device
    assert engine.cache.free_blocks == engine.cache.num_blocks


@pytest.mark.parametrize("mode", ["direct", "compile"])
def test_a_step_exchanges_sums_alone(mode):
    torch._dynamo.reset()
    engine = engine_of(mode, MESH)
    with pyxla.inspecting() as seen:
        list(engine.warm_up(sampling=False))
    modules = [m for m in seen.modules if m.calls]
    assert len(modules) == len(engine.buckets)
    for module in modules:
        called = [call.target.removeprefix("xla_gpu_") for call in module.calls]
        assert called.count("paged_attention") == called.count("rotary_and_cache") == TINY.num_hidden_layers
        # A device's part: half of the four heads, of the two kv heads.
        (queries, caches) = (
            [c.operands[i].shape for c in module.calls if c.target.endswith(op)]
            for i, op in ((0, "paged_attention"), (3, "rotary_and_cache"))
        )
        assert all(re.search(r"\[\d+,2,16\]", shape) for shape in queries), queries
        assert all(shape.startswith("f32[2,24,16,1,16]") for shape in caches), caches
        assert not [copy for copy in module.copies if copy.shape.startswith("f32[2,24,16")]
        sums = re.findall(r" all-reduce(?:-start)?\(", module.after)
        assert len(sums) == 2 * TINY.num_hidden_layers
        assert not re.search(r"all-to-all|collective-permute|reduce-scatter", module.after)
        # The logits of each device's part of the vocabulary, for the sequences' last rows, and nothing from a layer.
        assert all("[3," in line for line in re.findall(r"= (\S+) all-gather", module.after))


def test_a_compiled_step_is_one_graph_that_is_traced_once(monkeypatch):
    """Lengths and tokens are new tensors in every step; the caches are those that the previous step updated."""
    torch._dynamo.reset()
    engine = engine_of("compile", MESH)
    list(engine.warm_up(sampling=False))
    traced, trace = [], dynamo_bridge.extract_graph_helper
    monkeypatch.setattr(dynamo_bridge, "extract_graph_helper", lambda *given: traced.append(1) or trace(*given))
    before = executions()
    engine.generate([Request([7], 20), Request([1, 2, 3], 12)])
    assert engine.counts.steps > 18 and executions() - before == engine.counts.steps
    assert not traced and engine.counts.compilations == 0


def test_heads_that_the_devices_do_not_divide():
    line = xs.Mesh(np.arange(4), (4,), ("model",))
    with pytest.raises(pyxla.ArgumentError) as caught:
        engine_of("direct", line)
    assert caught.value.message == "llama: num_key_value_heads: expected a size that 4 devices divide, got 2"
    wide = dataclasses.replace(TINY, num_key_value_heads=4)
    assert engine_of("direct", line, wide).generate([Request([1, 2, 3], 4)])
