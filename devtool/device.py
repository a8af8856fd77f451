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
    return _driver() is not None


def cuda_architecture() -> str:
    """The code of the first GPU, as CMake names it: "90a-real".

    Raises:
        DevtoolError: there is no CUDA device.
    """
    driver = _driver()
    if driver is None:
        raise DevtoolError("devtool: GPU: expected a CUDA device, got none", "devtool doctor")
    device, numbers = ctypes.c_int(), []
    driver.cuDeviceGet(ctypes.byref(device), 0)
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        numbers.append(value.value)
    # The kernels for Hopper use instructions that 90 alone has not.
    return f"{numbers[0]}{numbers[1]}{'a' if numbers == [9, 0] else ''}-real"


def _driver() -> ctypes.CDLL | None:
    """CUDA's driver if it sees a GPU, else None."""
    try:
        driver = load_file("pjrt/driver.py").load()
    except OSError:
        return None
    count = ctypes.c_int(0)
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    return driver if found else None
