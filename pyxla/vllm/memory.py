"""How much of the device's memory the caches may take."""

from __future__ import annotations

import os
from collections.abc import Callable

from vllm import envs
from vllm.config import CacheConfig
from vllm.logger import init_logger

from pyxla.errors import PyxlaError, mismatch
from pyxla.pjrt.platform import requested_device
from pyxla.pjrt.proxy import memory_of
from pyxla.vllm.mesh import devices

# Below vllm, whose logger is the one that vLLM sets up.
logger = init_logger(f"vllm.{__name__}")

GIB = 1 << 30
# As vLLM's own CPU device, which has the same variable.
CPU_GIB = 4
# Kept free, of what is left for the caches: blocks of the allocator do not fit without gaps.
RESERVE = 0.02


def limit_memory(cache: CacheConfig) -> None:
    """Gives the device's allocator gpu_memory_utilization of the memory; call it before XLA starts.

    In one piece: of several, none may have room for a cache.
    """
    if requested_device() == "CUDA":
        os.environ.setdefault("PYXLA_MEMORY_FRACTION", str(cache.gpu_memory_utilization))
        os.environ.setdefault("PYXLA_PREALLOCATE", "1")


def bytes_for_caches(cache: CacheConfig, run_largest_step: Callable[[], None]) -> int:
    """The bytes that the caches may take on each device, beside the model and the largest step.

    Args:
        cache: vLLM's settings.
        run_largest_step: called to measure the peak; not on the CPU, where XLA keeps no account of memory.

    Raises:
        PyxlaError: nothing is left.
    """
    if cache.kv_cache_memory_bytes:
        return cache.kv_cache_memory_bytes
    if requested_device() == "CPU":
        return (envs.VLLM_CPU_KVCACHE_SPACE or CPU_GIB) * GIB

    model = max(memory_of(number).used for number in range(devices()))
    run_largest_step()
    # Of the device with the least left.
    _, peak, limit = min((memory_of(number) for number in range(devices())), key=lambda one: one.limit - one.peak)
    left = int((limit - peak) * (1 - RESERVE))
    figures = f"{limit / GIB:.2f} GiB, the model {model / GIB:.2f}, the largest step {(peak - model) / GIB:.2f}"
    if left <= 0:
        raise PyxlaError(
            mismatch("vllm", "gpu_memory_utilization", "room for a KV cache", f"none of {figures}"),
            "raise gpu_memory_utilization, or lower max_num_batched_tokens",
        )
    logger.info("memory: %s; for KV caches %.2f GiB", figures, left / GIB)
    return left
