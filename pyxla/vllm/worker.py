"""The worker: vLLM's way to one XLA device and its model runner."""

from __future__ import annotations

import gc
import os
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.model_executor import set_random_seed
from vllm.platforms import current_platform
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.utils import report_usage_stats
from vllm.v1.worker.worker_base import WorkerBase

from pyxla.vllm.graph_cache import keep_graphs
from pyxla.vllm.memory import bytes_for_caches, limit_memory
from pyxla.vllm.mesh import FUSED_SUMS, OPTION, devices, start_mesh
from pyxla.vllm.refusal import refuse_unless
from pyxla.vllm.releases import grammar_masks, samples_apart
from pyxla.vllm.xla_flags import set_flags, set_precision

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec


class XlaWorker(WorkerBase):
    """What an executor of vLLM calls; vLLM's WorkerBase says when."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any):
        super().__init__(_alone(vllm_config), *args, **kwargs)
        self._engine = vllm_config.parallel_config.data_parallel_rank

    def init_device(self) -> None:
        """Starts XLA and makes the runner."""
        limit_memory(self.cache_config)
        set_flags()
        keep_graphs()
        options = self.vllm_config.additional_config
        start_mesh(options.get(OPTION, 1), options.get(FUSED_SUMS))
        import torch_xla

        # Found here, before a model is loaded in vain. A folder named pyxla in the working directory hides the package.
        found = hasattr(torch.ops.xla_gpu, "paged_attention")
        refuse_unless(found, "ops", "torch.ops.xla_gpu.paged_attention", "none", "devtool doctor")
        from pyxla.vllm import layers, moe  # noqa: F401
        from pyxla.vllm.runner.model_runner import ModelRunner

        current_platform.check_if_supports_dtype(self.model_config.dtype)
        set_precision(self.model_config.dtype)
        with set_current_vllm_config(self.vllm_config):
            init_distributed_environment(
                world_size=1,
                rank=self.rank,
                local_rank=self.local_rank,
                distributed_init_method=self.distributed_init_method,
                backend=current_platform.dist_backend,
            )
            ensure_model_parallel_initialized(1, 1)
        self.device = torch_xla.device()
        set_random_seed(self.model_config.seed)
        self.model_runner = ModelRunner(self.vllm_config, self.device)
        if self.rank == 0:
            report_usage_stats(self.vllm_config)

    def load_model(self) -> None:
        """Loads the model and moves it to the device."""
        self.model_runner.load_model()

    def get_model(self) -> torch.nn.Module:
        """The model on the device."""
        return self.model_runner.model

    def get_supported_tasks(self) -> tuple[str, ...]:
        """What requests may ask for."""
        return ("generate",)

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """What each layer's cache is like."""
        return self.model_runner.kv_cache_spec()

    def determine_available_memory(self) -> int:
        """The bytes that the caches may take, on all devices together."""
        return devices() * bytes_for_caches(self.cache_config, self.model_runner.run_largest_step)

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Notes how many blocks vLLM has decided on."""
        self.cache_config.num_gpu_blocks, self.cache_config.num_cpu_blocks = num_gpu_blocks, num_cpu_blocks

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Makes the caches."""
        self.model_runner.make_caches(kv_cache_config)

    def compile_or_warm_up_model(self) -> None:
        """Compiles all steps."""
        # Tracing makes millions of objects, and most stay: the collector would take a quarter of the time.
        gc.disable()
        try:
            self.model_runner.warm_up()
        finally:
            gc.enable()
        # While the server serves it need not look at them, which would delay a step by 15 ms.
        gc.collect()
        gc.freeze()
        # A step's data is filled and copied in microseconds, but OpenMP's threads wait for each other, for up to 10 ms.
        # Who sets the variable wants something else.
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        """Launches the model of a step; where vLLM does not call `sample_tokens`, does that too."""
        if not self.model_runner.compute(scheduler_output):
            return EMPTY_MODEL_RUNNER_OUTPUT
        return None if samples_apart() else self._sample(scheduler_output)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        """Launches the sampling of a step; without async scheduling also reads its tokens."""
        return self._sample(grammar_output)

    def _sample(self, planned: SchedulerOutput | GrammarOutput | None) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        flight = self.model_runner.sample(grammar_masks(planned))
        return flight if self.vllm_config.scheduler_config.async_scheduling else flight.get_output()

    def execute_dummy_batch(self) -> None:
        """Runs a step without requests: among several engines, an idle one keeps pace with those that have some."""
        self.model_runner.run_smallest_step()

    def profile(self, is_start: bool = True) -> None:
        """Not there: pyxla's own profiler sees XLA's kernels."""
        refuse_unless(False, "profile", "no call", "one", "devtool trace")

    def shutdown(self) -> None:
        """Does nothing: the device ends with the process."""


def _alone(config: VllmConfig) -> VllmConfig:
    """The configuration of one of several engines, as if it were the only one: its model has no part in the others."""
    alone, parallel = copy(config), copy(config.parallel_config)
    parallel.data_parallel_size, parallel.data_parallel_rank = 1, 0
    alone.parallel_config = parallel
    return alone
