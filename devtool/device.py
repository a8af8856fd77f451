"""Picks the XLA device of a command. It asks CUDA's driver, because torch takes seconds to load."""

from __future__ import annotations

import ctypes

from devtool.errors import DevtoolError


def pick_device(where: str, wanted: str) -> str:
    """The XLA device for a command: "cpu" or "cuda".

    Raises:
        DevtoolError: "cuda" is wanted, but there is no CUDA device.
    """
    if wanted == "cpu":
        return "cpu"
    if _cuda_devices():
        return "cuda"
    if wanted == "auto":
        return "cpu"
    raise DevtoolError(f"{where}: --device: expected a CUDA device, got none", f"devtool {where} --device cpu")


def _cuda_devices() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0
