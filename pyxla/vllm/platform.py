"""The platform that vLLM asks about everything that depends on the device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from pyxla.pjrt.cuda_plugin import gpus
from pyxla.pjrt.platform import requested_device
from pyxla.vllm.mesh import OPTION
from pyxla.vllm.refusal import check_config, check_request, refuse_unless
from pyxla.vllm.releases import compile_nothing, release

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

BLOCK_SIZE = 16
# Here at the latest: an error of the plugin's entry point would only make vLLM take another platform.
release()


class XlaPlatform(Platform):
    """XLA's device, CUDA or CPU."""

    _enum = PlatformEnum.OOT
    device_type = "xla"
    # vLLM makes torch.device(f"{device_name}:{rank}") of it: a type of device, not a title.
    device_name = "xla"
    dispatch_key = "XLA"
    dist_backend = "gloo"
    # Small functions that vLLM compiles by themselves become part of the step's graph.
    simple_compile_backend = "eager"
    device_control_env_var = "CUDA_VISIBLE_DEVICES"
    # Of the last engine that was made; vLLM does not say which engine a request is for.
    _config: VllmConfig

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """The device's name in vLLM's messages; of a GPU also its own, by which vLLM chooses defaults."""
        return f"XLA:CUDA, {gpus()[device_id].name}" if requested_device() == "CUDA" else "XLA:CPU"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes, as the GPU's driver says: XLA must not start where vLLM asks, to choose defaults.

        Raises:
            NotImplementedError: on the CPU. vLLM then takes its smaller defaults.
        """
        if requested_device() != "CUDA":
            raise NotImplementedError
        return gpus()[device_id].memory

    @classmethod
    def device_count(cls) -> int:
        """One: a server drives one device."""
        return 1

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Does nothing: torch_xla has chosen the device."""

    @classmethod
    def empty_cache(cls) -> None:
        """Does nothing: XLA's allocator keeps no cache of torch's."""

    @classmethod
    def inference_mode(cls) -> torch.no_grad:
        """no_grad: XLA tensors made in torch.inference_mode cannot be updated in place outside of it."""
        return torch.no_grad()

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """False: torch_xla copies from any memory."""
        return False

    @classmethod
    def check_if_supports_dtype(cls, torch_dtype: torch.dtype) -> None:
        """Raises for a dtype that the ops do not take."""
        refuse_unless(
            torch_dtype in (torch.bfloat16, torch.float16, torch.float32),
            "dtype",
            "bfloat16, float16 or float32",
            torch_dtype,
        )

    @classmethod
    def import_kernels(cls) -> None:
        """Does nothing: vLLM's own kernels are not used, and may not be there."""

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, head_size: int, *others: Any) -> str:
        """The attention of pyxla's ops, whatever others say: check_config has refused other kinds of attention."""
        fits = head_size % 8 == 0 and head_size <= 256
        refuse_unless(fits, "head size", "a multiple of 8, at most 256", head_size)
        return "pyxla.vllm.attention.XlaAttentionBackend"

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Refuses what is not there, and sets what this platform decides."""
        from vllm.config import CUDAGraphMode

        if vllm_config.cache_config.block_size is None:
            vllm_config.cache_config.block_size = BLOCK_SIZE
        check_config(vllm_config)
        cls._config = vllm_config
        _use_one_process(vllm_config)
        # The runner compiles a whole step; vLLM is to compile no part of it.
        compile_nothing(vllm_config.compilation_config)
        vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
        # There is no generator on an XLA device, so weights are made on the host; the runner moves them.
        vllm_config.load_config.device = "cpu"
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = "pyxla.vllm.worker.XlaWorker"
        # A forked child can use neither CUDA's libraries nor torch's threads of the host, and waits for them forever.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")

    @classmethod
    def is_kv_cache_dtype_supported(cls, kv_cache_dtype: str, model_config: ModelConfig) -> bool:
        """True: check_config refuses, with the name of the option."""
        return True

    @classmethod
    def validate_request(cls, prompt: Any, params: Any, processed_inputs: Any) -> None:
        """Refuses a request whose parameters are not there."""
        from vllm.sampling_params import SamplingParams

        if isinstance(params, SamplingParams):
            check_request(params, processed_inputs.get("prompt_token_ids") or (), cls._config)


def _use_one_process(config: VllmConfig) -> None:
    """Lets one worker compute on all devices that share a model, where vLLM would start one for each.

    Args:
        config: vLLM's; changed in place once, as engines check it again. Its world_size stays: it says how many devices
            are those of one engine among several.
    """
    parallel = config.parallel_config
    if parallel.tensor_parallel_size > 1:
        config.additional_config = {**config.additional_config, OPTION: parallel.tensor_parallel_size}
        parallel.tensor_parallel_size, parallel.distributed_executor_backend = 1, "uni"
