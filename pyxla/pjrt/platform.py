"""The device that this process computes on.

torch_xla calls it "CPU" or "CUDA"; XLA registers handlers for its platform, "Host" or "CUDA".
"""

from __future__ import annotations

import os


def requested_device() -> str:
    """The device that PJRT_DEVICE names, without starting XLA; the CPU, as in torch_xla, if it is not set."""
    return os.environ.get("PJRT_DEVICE", "CPU")


def device_type() -> str:
    """The device on which XLA computes; starts XLA."""
    import torch_xla.runtime

    return torch_xla.runtime.device_type() or ""


def platform_of(device: str) -> str:
    """The platform of a device's handlers."""
    return "Host" if device == "CPU" else device


def platform() -> str:
    """The platform of the handlers that XLA calls in this process; starts XLA."""
    return platform_of(device_type())
