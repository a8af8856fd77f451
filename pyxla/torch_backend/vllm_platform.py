"""What vLLM calls through the entry point of group `vllm.platform_plugins`, in every process that imports it.

It is here because importing pyxla would import torch_xla, also for those who use vLLM's own devices.
"""

from __future__ import annotations

import os


def vllm_platform() -> str | None:
    """The platform's class where PJRT_DEVICE names a device of pyxla's; elsewhere None, and vLLM chooses its own."""
    return "pyxla.vllm.platform.XlaPlatform" if os.environ.get("PJRT_DEVICE") in ("CUDA", "CPU") else None
