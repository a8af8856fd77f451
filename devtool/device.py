"""Picks the XLA device of a command. It asks CUDA's driver, because torch takes seconds to load."""

from __future__ import annotations

import ctypes

from devtool.errors import DevtoolError
from devtool.pyxla_files import load_file


def pick_device(where: str, wanted: str) -> str:
    """The XLA device for a command: "cpu" or "cuda".

    Raises:
        DevtoolError: "cuda" is wanted, but there is no CUDA device.
    """
    if wanted == "cpu":
        return "cpu"
    if has_cuda_device():
        return "cuda"
    if wanted == "auto":
        return "cpu"
    raise DevtoolError(f"{where}: --device: expected a CUDA device, got none", f"devtool {where} --device cpu")


def has_cuda_device() -> bool:
    """Whether CUDA's driver sees a GPU."""
    try:
        driver = load_file("pjrt/driver.py").load()
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
