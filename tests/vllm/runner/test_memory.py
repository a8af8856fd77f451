"""How much memory the caches get, and that measuring it leaves nothing behind."""

import pytest

import pyxla
from tests.vllm.engine import MARKS, MODES, engine, generate, prompts_of, runner_of
from tests.vllm.models import greedy

pytestmark = MARKS
GIB = 1 << 30


@pytest.fixture
def cache():
    from vllm.config import CacheConfig

    return CacheConfig(gpu_memory_utilization=0.5)


def ask(cache, run=lambda: None):
    from pyxla.vllm.memory import bytes_for_caches

    return bytes_for_caches(cache, run)


def test_on_the_cpu_it_is_a_variable(cache, monkeypatch):
    monkeypatch.setattr("pyxla.vllm.memory.requested_device", lambda: "CPU")
    assert ask(cache) == 4 * GIB
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    assert ask(cache) == GIB
    cache.kv_cache_memory_bytes = 12345
    assert ask(cache) == 12345


@pytest.fixture
def gpu(monkeypatch):
    """Figures of a GPU: XLA's CPU device keeps none."""
    import pyxla.vllm.memory as memory
    from pyxla.pjrt.proxy import Memory

    figures = [Memory(used=15 * GIB, peak=15 * GIB, limit=40 * GIB)]
    monkeypatch.setattr(memory, "requested_device", lambda: "CUDA")
    monkeypatch.setattr(memory, "memory_of", lambda device: figures[device])
    monkeypatch.setattr(memory, "devices", lambda: len(figures))
    return figures


def test_on_a_gpu_it_is_what_the_largest_step_leaves(cache, gpu):
    def run():
        gpu[0] = gpu[0]._replace(peak=20 * GIB)

    assert ask(cache, run) == int(20 * GIB * 0.98)


def test_on_several_gpus_it_is_what_the_fullest_leaves(cache, gpu):
    def run():
        gpu[1] = gpu[1]._replace(peak=30 * GIB)

    gpu.append(gpu[0])
    assert ask(cache, run) == int(10 * GIB * 0.98)


def test_a_model_that_leaves_no_room(cache, gpu):
    def run():
        gpu[0] = gpu[0]._replace(peak=40 * GIB)

    with pytest.raises(pyxla.PyxlaError) as caught:
        ask(cache, run)
    assert caught.value.message == (
        "vllm: gpu_memory_utilization: expected room for a KV cache, "
        "got none of 40.00 GiB, the model 15.00, the largest step 25.00"
    )
    assert caught.value.hint == "raise gpu_memory_utilization, or lower max_num_batched_tokens"


def test_gpu_memory_utilization_limits_xla(cache, gpu, monkeypatch):
    from pyxla.pjrt.client_options import client_options
    from pyxla.vllm.memory import limit_memory

    names = ("PYXLA_MEMORY_FRACTION", "PYXLA_PREALLOCATE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    limit_memory(cache)
    options = client_options()
    assert (options["memory_fraction"], options["preallocate"]) == (0.5, True)
    for name in names:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("mode", MODES)
def test_the_largest_step_runs_before_the_caches_are_made(folder_of, monkeypatch, mode):
    """As on a GPU, where its peak is measured; all steps are compiled for the real caches after it."""
    from pyxla.vllm.runner.model_runner import ModelRunner

    warm_up, shapes = ModelRunner.warm_up, []

    def measured(self):
        real = self.caches
        self.run_largest_step()
        shapes.extend(layer.kv_cache[0].shape for layer in self._layers.values())
        for layer, cache in zip(self._layers.values(), real, strict=True):
            layer.kv_cache = [cache]
        warm_up(self)

    monkeypatch.setattr(ModelRunner, "warm_up", measured)
    llm = engine(folder_of("llama"), mode)
    assert [tuple(shape) for shape in shapes] == [(0,)] * len(runner_of(llm).caches)
    prompts = prompts_of(5, 40)
    with pyxla.assert_no_recompilation():
        tokens = generate(llm, prompts, 8)
    assert tokens == greedy(folder_of("llama"), prompts, 8)
