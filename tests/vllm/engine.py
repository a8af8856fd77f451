"""vLLM's engine in the test's own process, where its parts and XLA's counters can be seen."""

import importlib.util
import os
import random
from pathlib import Path

import pytest

from tests.vllm.models import LONGEST

MODES = ("compiled", "direct")
# Of most models: 2 layers, keys and values, 16 tokens, 2 heads of 16 float32 numbers.
BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4
# For each file: vLLM's own imports warn.
MARKS = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: PYXLA_SET=vllm bin/devtool"
    ),
    pytest.mark.filterwarnings("ignore"),
]
# Options with which a step is launched before the tokens of the last one are read.
AHEAD = {"async_scheduling": True, "distributed_executor_backend": "uni"}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    # Otherwise cuBLAS may round the operands of float32 products to TF32, in this process and in those of a server.
    "NVIDIA_TF32_OVERRIDE": "0",
}
os.environ.update(ENVIRONMENT)


def engine(folder: Path, mode: str = "compiled", **options):
    """An engine with few buckets: 16 and 32 tokens.

    Args:
        folder: of the model.
        mode: one of MODES.
        options: of vllm.LLM, instead of these.
    """
    from transformers import AutoConfig
    from vllm import LLM, ModelRegistry

    for name in AutoConfig.from_pretrained(folder).architectures:
        # vLLM looks at a class that it has not loaded yet in a process of its own, which takes 9 s.
        ModelRegistry.models[name] = registered(ModelRegistry.models[name])
    chosen = {
        "dtype": "float32",
        "max_model_len": LONGEST,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "kv_cache_memory_bytes": 4_000_000,
        "enforce_eager": mode == "direct",
    }
    return LLM(model=str(folder), seed=0, **(chosen | options))


def registered(model):
    """An entry of vLLM's registry with its class loaded."""
    from vllm.model_executor.models.registry import _RegisteredModel

    return _RegisteredModel.from_model_cls(model.load_model_cls())


def worker_of(llm):
    """The engine's XlaWorker."""
    return llm.llm_engine.model_executor.driver_worker.worker


def runner_of(llm):
    """The engine's ModelRunner."""
    return worker_of(llm).model_runner


def scheduler_of(llm):
    """The engine's scheduler."""
    return llm.llm_engine.engine_core.engine_core.scheduler


def prompts_of(*lengths: int) -> list[list[int]]:
    """Random tokens, the same in each call."""
    numbers = random.Random(1)
    return [[numbers.randint(3, 250) for _ in range(length)] for length in lengths]


def generate(llm, prompts: list[list[int]], count: int) -> list[list[int]]:
    """The likeliest tokens after each prompt."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]
