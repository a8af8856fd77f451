"""What XLA makes of a step: one graph, pyxla's ops, and no copy of a cache."""

import gc
import re

import pytest
import torch

import pyxla
from pyxla.artifact.capture import xla_tensors
from pyxla.testing import compilations
from tests.vllm.engine import MARKS, MODES, engine, runner_of, worker_of

pytestmark = MARKS


@pytest.mark.parametrize(("mode", "cache"), [("compiled", "auto"), ("direct", "auto"), ("compiled", "fp8")])
def test_a_step_is_one_graph_without_a_copy_of_a_cache(folder_of, mode, cache):
    runner = runner_of(engine(folder_of("llama3_rope"), mode, kv_cache_dtype=cache))
    with pyxla.inspecting() as seen:
        runner.run_smallest_step()
    (module,) = seen.modules
    layers = 2
    pyxla.assert_custom_calls(seen, "paged_attention", layers)
    pyxla.assert_custom_calls(seen, "reshape_and_cache", layers)
    pyxla.assert_custom_calls(seen, "rotary_embedding", layers)
    pyxla.assert_custom_calls(seen, "silu_and_mul", layers)
    pyxla.assert_custom_calls(seen, "rms_norm", 1)
    # The rest of the norms: with the residual, the last one too.
    pyxla.assert_custom_calls(seen, "fused_add_rms_norm", 2 * layers)
    pyxla.assert_no_copies(seen, "reshape_and_cache")
    cache = "[{},{},{},{},{}]".format(*runner.caches[0].shape)
    assert [copy for copy in module.copies if cache in copy.shape] == []
    assert len(module.aliases) == layers


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_for_each_bucket(folder_of, mode):
    before = compilations()
    # A number of requests that no other test has: XLA compiles a graph once in a process.
    runner = runner_of(engine(folder_of("llama"), mode, max_num_seqs={"compiled": 5, "direct": 6}[mode]))
    after = compilations()
    assert len(runner.buckets.all) == 2
    runner.warm_up()
    assert compilations() == after
    assert after - before >= 2


def test_graphs_keep_no_logits(folder_of):
    """Those of all buckets and ways to sample: with 1024 requests they once took 4 GB beside the caches."""
    from pyxla.vllm.sampling import Tables

    runner = runner_of(engine(folder_of("llama"), "compiled"))
    # vLLM hides what a ready engine has from the collector.
    gc.unfreeze()
    gc.collect()
    row = (runner.config.model_config.get_vocab_size(),)
    # Those of the engines of other tests too.
    tables = {id(table) for kept in gc.get_objects() if type(kept) is Tables for table in kept}
    logits = [kept.shape for kept in xla_tensors() if kept.shape[1:] == row and id(kept) not in tables]
    assert tables and logits == []


def test_a_ready_worker_leaves_openmp_one_thread(folder_of, monkeypatch):
    """A step of 64 requests is just large enough that torch would use all of them, and wait for the slowest."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    worker = worker_of(engine(folder_of("llama")))
    assert torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    worker.compile_or_warm_up_model()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "weights"), [("llama", 1), ("llama3_rope", 2)])
def test_tied_weights_are_one_buffer(folder_of, name, weights):
    """The embedding and the head; as two they would add a fifth to Llama 3.2 1B."""
    runner = runner_of(engine(folder_of(name)))
    shape = list(runner.model.lm_head.weight.shape)
    with pyxla.inspecting() as seen:
        runner.run_smallest_step()
    (module,) = seen.modules
    operands = re.findall(rf"f32\[{shape[0]},{shape[1]}\]\S* parameter\(", module.before)
    assert len(operands) == weights
