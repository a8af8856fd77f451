"""Runs a model: loads it, gives its layers their caches, compiles the steps and launches them."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch_xla
from vllm.attention import Attention
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.model_loader import get_model
from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec, KVCacheSpec, SlidingWindowSpec

from pyxla.hlo.dump import compilations
from pyxla.sync import sync
from pyxla.vllm.fused_decoder import fuse
from pyxla.vllm.graph import in_mode
from pyxla.vllm.mesh import place
from pyxla.vllm.refusal import FLOAT8, refuse_unless
from pyxla.vllm.releases import resumed
from pyxla.vllm.runner.batch import Batch, Plan
from pyxla.vllm.runner.buckets import Bucket, Buckets
from pyxla.vllm.runner.inputs import Layout
from pyxla.vllm.runner.output import Flight
from pyxla.vllm.runner.sampler import LIKELIEST, StepSampler
from pyxla.vllm.runner.step import Computed, step
from pyxla.vllm.sampling import VARIANTS, Level, Prepared, Sampled, Variant
from pyxla.vllm.sharding import shard

if TYPE_CHECKING:
    import numpy as np
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig

# Below vllm, whose logger is the one that vLLM sets up.
logger = init_logger(f"vllm.{__name__}")


class ModelRunner:
    """A model on an XLA device.

    Args:
        config: vLLM's.
        device: the XLA device.

    Attributes:
        buckets: the shapes of its steps.
        direct: whether steps are traced in each call (enforce_eager).
        model: vLLM's model, after `load_model`.
    """

    def __init__(self, config: VllmConfig, device: torch.device):
        self.config, self.device = config, device
        self.direct = config.model_config.enforce_eager
        scheduler, block_size = config.scheduler_config, config.cache_config.block_size
        self.max_requests = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
        length = config.model_config.max_model_len
        max_blocks = -(-length // block_size)
        self.buckets = Buckets(scheduler.max_num_batched_tokens, self.max_requests)
        self._layouts = {bucket: Layout(bucket, max_blocks) for bucket in self.buckets.all}
        self._batch = Batch(self.max_requests, length, max_blocks, block_size)
        # Between the two halves of a step.
        self._started: tuple[Plan, Bucket, list[int], Computed] | None = None
        self._flight: Flight | None = None
        # Of what is known of the requests: with async scheduling another thread notes the tokens of a step.
        self._known = threading.Lock()
        self._previous = place(torch.zeros(self.max_requests, dtype=torch.int32).to(device))
        self._layers: dict[str, Attention] = {}

    def load_model(self) -> None:
        """Loads the model on the host, then moves it to the device."""
        started = time.perf_counter()
        self.model = fuse(get_model(vllm_config=self.config).eval())
        self._layers = get_layers_from_vllm_config(self.config, Attention)
        _move(self.model, self.device, shard(self.model))
        for layer in self._layers.values():
            layer.impl.to(self.device, self._layers.get(layer.kv_sharing_target_layer_name, layer))
        mode = "direct" if self.direct else "compile"
        self._step = in_mode(partial(step, self.model, self._layers), mode)
        self._sampler = StepSampler(
            self.config.model_config,
            self.max_requests,
            self.device,
            mode,
            self.model.compute_logits,
        )
        sync()
        logger.info("moved the model to %s; loading took %.1f s", self.device, time.perf_counter() - started)

    def kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """What each layer's cache is like; layers that share another one's have none."""
        block_size, dtype = self.config.cache_config.block_size, self._cache_dtype
        specs: dict[str, KVCacheSpec] = {}
        for name, layer in self._layers.items():
            if layer.kv_sharing_target_layer_name is not None:
                continue
            shape = {"num_kv_heads": layer.num_kv_heads, "head_size": layer.head_size}
            shape |= {"block_size": block_size, "dtype": dtype}
            window = layer.sliding_window
            specs[name] = (
                FullAttentionSpec(**shape) if window is None else SlidingWindowSpec(**shape, sliding_window=window)
            )
        return specs

    @property
    def _cache_dtype(self) -> torch.dtype:
        float8 = self.config.cache_config.cache_dtype in FLOAT8
        return torch.float8_e4m3fn if float8 else self.config.model_config.dtype

    def make_caches(self, config: KVCacheConfig) -> None:
        """Makes the caches and gives them to the layers."""
        kinds = len(config.kv_cache_groups)
        refuse_unless(kinds == 1, "KV cache", "one kind for all layers", f"{kinds} kinds")
        sizes = {name: tensor.size for tensor in config.kv_cache_tensors for name in tensor.shared_by}
        spec = config.kv_cache_groups[0].kv_cache_spec
        refuse_unless(isinstance(spec, AttentionSpec), "KV cache", "keys and values", type(spec).__name__)
        blocks = {name: sizes[name] // spec.page_size_bytes for name in config.kv_cache_groups[0].layer_names}
        self._bind(spec.dtype, blocks)

    def _bind(self, dtype: torch.dtype, blocks: dict[str, int]) -> None:
        for name, count in blocks.items():
            layer = self._layers[name]
            shape = layer.attn_backend.get_kv_cache_shape(
                count, self.config.cache_config.block_size, layer.num_kv_heads, layer.head_size
            )
            layer.kv_cache = [place(torch.zeros(shape, dtype=dtype, device=self.device), 3)]
        for layer in self._layers.values():
            if layer.kv_sharing_target_layer_name is not None:
                layer.kv_cache = self._layers[layer.kv_sharing_target_layer_name].kv_cache
        sync()

    @property
    def caches(self) -> list[torch.Tensor]:
        """The cache of each layer that has its own."""
        return [layer.kv_cache[0] for layer in self._layers.values() if layer.kv_sharing_target_layer_name is None]

    def run_largest_step(self) -> None:
        """Runs the largest step, over caches of one block, so that the device's peak use of memory includes it.

        It is traced as without graphs: no other step could use its graph.
        """
        self._bind(self._cache_dtype, dict.fromkeys(self.kv_cache_spec(), 1))
        mode = self.direct, self._step
        self.direct, self._step = True, partial(step, self.model, self._layers)
        for logprobs in (False, True):
            hidden = self._launch_empty(self.buckets.all[-1], Variant(Level.ADJUSTED, logprobs))
        self._sampler.warm_up_prompts(hidden)
        self.direct, self._step = mode
        for layer in self._layers.values():
            layer.kv_cache = [torch.tensor([])]

    def warm_up(self) -> None:
        """Compiles the step of every bucket with all that samples, before the first request."""
        number, before, started = len(self.buckets.all), compilations(), time.perf_counter()
        for index, bucket in enumerate(self.buckets.all, 1):
            begun = time.perf_counter()
            # Buckets with as many requests share the graphs that sample.
            first = all(other.requests != bucket.requests for other in self.buckets.all[: index - 1])
            for variant in VARIANTS if first else [LIKELIEST]:
                hidden = self._launch_empty(bucket, variant)
            self._sampler.warm_up_prompts(hidden)
            took = time.perf_counter() - begun
            logger.info("step %d of %d: %d tokens, %d requests: %.1f s", index, number, *bucket, took)
        self._sampler.warm_up()
        took = time.perf_counter() - started
        logger.info("%d graphs compiled, all ready in %.1f s", compilations() - before, took)

    def run_smallest_step(self) -> None:
        """Runs a step without requests. The next step still finds the tokens of the last one that had some."""
        previous = self._previous
        self._launch_empty(self.buckets.all[0])
        self._previous = previous

    def compute(self, scheduled: SchedulerOutput) -> bool:
        """Launches the model of a step; `sample` comes next.

        Args:
            scheduled: what vLLM's scheduler has planned.

        Returns:
            Whether anything is scheduled; if not, there is nothing to sample.
        """
        with self._known:
            self._batch.update(scheduled, resumed(scheduled.scheduled_cached_reqs))
            self._sampler.update(scheduled)
            if not scheduled.total_num_scheduled_tokens:
                return False
            bucket = self.buckets.fitting(scheduled.total_num_scheduled_tokens)
            plan = self._batch.plan(scheduled.num_scheduled_tokens, bucket, self._layouts[bucket])
        counts = list(scheduled.num_scheduled_tokens.values())
        self._started = plan, bucket, counts, self._compute(bucket, plan.packed)
        return True

    def sample(self, masks: dict[str, np.ndarray]) -> Flight:
        """Launches the sampling of the step whose model was launched.

        Args:
            masks: request -> the mask of its grammar.

        Returns:
            The step, to be read.
        """
        assert self._started is not None
        (plan, bucket, counts, computed), self._started = self._started, None
        if self._flight and self._sampler.waits_for_tokens(plan.ids):
            self._flight.read()
        with self._known:
            prepared = self._sampler.prepare(plan, bucket, masks)
        sampled = self._sample(prepared, computed)
        with self._known:
            self._batch.launched(plan)
            prompts = self._sampler.prompt_logprobs(plan, counts, computed.hidden)
        self._flight = Flight(plan, sampled, prompts, self._has_read)
        return self._flight

    def _has_read(self, plan: Plan, tokens: np.ndarray) -> None:
        with self._known:
            self._batch.has_read(plan, tokens)
            self._sampler.has_read(plan, tokens)

    def _launch_empty(self, bucket: Bucket, variant: Variant = LIKELIEST) -> torch.Tensor:
        packed, _ = self._layouts[bucket].empty()
        computed = self._compute(bucket, packed)
        self._sample(self._sampler.blank(bucket, variant), computed).tokens.cpu()
        return computed.hidden

    def _compute(self, bucket: Bucket, packed: torch.Tensor) -> Computed:
        with torch.no_grad():
            packed = place(packed.to(self.device))
            computed = self._step(self._layouts[bucket], packed, self._previous, *self.caches)
            self._end_graph()
        return computed

    def _sample(self, prepared: Prepared, computed: Computed) -> Sampled:
        with torch.no_grad():
            sampled = self._sampler.run(prepared, computed.likeliest, computed.logits)
            self._end_graph()
        self._previous = sampled.tokens
        return sampled

    def _end_graph(self) -> None:
        if self.direct:
            torch_xla.sync()


def _move(model: torch.nn.Module, device: torch.device, split: dict[int, int]) -> None:
    """Like `model.to(device)`, which would make two tensors of a tied weight.

    Args:
        model: on the host.
        device: the XLA device.
        split: what `shard` returned.
    """
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == device:
            # Of a module that is in the model twice.
            return tensor
        # The first of the pair is kept, so that no other tensor gets its id.
        if id(tensor) not in moved:
            moved[id(tensor)] = tensor, place(tensor.to(device), split.get(id(tensor)))
        return moved[id(tensor)][1]

    model.requires_grad_(False)._apply(move)
