"""Finds XLA's CUDA plugin, the libraries that it opens by name, and the GPUs; says what is missing.

The plugin is the one that JAX maintains: the wheels jax-cuda13-pjrt or jax-cuda12-pjrt. pyxla puts pjrt_proxy between
torch_xla and the plugin, because torch_xla is older (pyxla/pjrt_proxy/pjrt_proxy.cc).
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyxla.errors import PyxlaError, mismatch
from pyxla.pjrt import driver
from pyxla.pjrt.cuda_libraries import LIBRARIES, OPTIONAL, in_package

# Tested with 0.76 (jax-cuda13-pjrt 0.7.2), 0.115 (0.11.2) and 0.116 (0.12.0.1).
API_VERSIONS = ((0, 76), (0, 116))
_NAMED = "PYXLA_PJRT_PLUGIN"
# CUDA_ERROR_NO_DEVICE.
_NO_DEVICE = 100


@dataclass(frozen=True)
class Plugin:
    """A PJRT plugin for CUDA.

    Attributes:
        path: the library.
        origin: where it was found: "PYXLA_PJRT_PLUGIN" or the wheel and its version.
        cuda: the major version of CUDA that it was built for.
    """

    path: Path
    origin: str
    cuda: int

    @property
    def is_named(self) -> bool:
        """Whether PYXLA_PJRT_PLUGIN names it."""
        return self.origin == _NAMED


@dataclass(frozen=True)
class Gpu:
    """A GPU that the driver reports: its name, compute capability, and memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int


@cache
def find_plugin() -> Plugin:
    """The plugin that PYXLA_PJRT_PLUGIN names, else that of jax-cuda13-pjrt, else that of jax-cuda12-pjrt.

    A named one is for CUDA 12 if its path contains "cuda12", as the paths in the wheels do; otherwise for CUDA 13.
    If it is a wheel's, it counts as found there: a process inherits the variable from one that has imported torch_xla.

    Raises:
        PyxlaError: there is none.
    """
    named = os.environ.get(_NAMED)
    if named and not Path(named).is_file():
        raise PyxlaError(mismatch("CUDA", "PYXLA_PJRT_PLUGIN", "a PJRT plugin", f"no file at {named}"), "unset it")
    for cuda in (13, 12):
        path = in_package("jax_plugins", f"xla_cuda{cuda}/xla_cuda_plugin.so")
        if path and named in (None, "", str(path)):
            version = importlib.metadata.version(f"jax-cuda{cuda}-pjrt")
            return Plugin(path, f"jax-cuda{cuda}-pjrt {version}", cuda)
    if named:
        return Plugin(Path(named), _NAMED, 12 if "cuda12" in named else 13)
    raise PyxlaError(
        mismatch("CUDA", "plugin", "jax-cuda13-pjrt or jax-cuda12-pjrt", "neither installed"),
        "PYXLA_SET=cuda13 bin/devtool, or pip install jax-cuda13-pjrt==0.11.2, or name a plugin in PYXLA_PJRT_PLUGIN",
    )


@cache
def load_libraries(plugin: Plugin) -> tuple[str, ...]:
    """Loads the libraries that the plugin opens by name, from the wheels or else the system; returns paths or names.

    Raises:
        PyxlaError: a library is missing or cannot be loaded.
    """
    loaded = []
    for folder, name in LIBRARIES[plugin.cuda]:
        path = in_package("nvidia", f"{folder}/{name}")
        try:
            ctypes.CDLL(str(path or name), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            if name in OPTIONAL:
                continue
            raise PyxlaError(
                mismatch("CUDA", "library", f"{name}, which {plugin.origin} opens", error),
                _library_hint(plugin.cuda, folder),
            ) from error
        loaded.append(str(path or name))
    return tuple(loaded)


def _library_hint(cuda: int, folder: str) -> str:
    if cuda == 13:
        return "install the locked CUDA 13 libraries: PYXLA_SET=cuda13 bin/devtool"
    # There is no lock for CUDA 12. Its wheels are called like their folders.
    return f"pip install nvidia-{folder.partition('/')[0].replace('_', '-')}-cu{cuda}"


@cache
def gpus() -> tuple[Gpu, ...]:
    """The GPUs that the driver reports, in its order (CUDA_VISIBLE_DEVICES applies).

    Raises:
        PyxlaError: no driver, one that does not start, or no GPU.
    """
    try:
        cuda = driver.load()
    except OSError as error:
        raise PyxlaError(mismatch("CUDA", "driver", "libcuda.so.1", error), driver.install_hint()) from error
    count = ctypes.c_int()
    for status in (cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count))):
        if status == _NO_DEVICE:
            break
        if status:
            text = ctypes.c_char_p()
            cuda.cuGetErrorString(status, ctypes.byref(text))
            got = (text.value or b"no text").decode()
            raise PyxlaError(
                mismatch("CUDA", "driver", "one that starts", f"error {status}: {got}"), "nvidia-smi says more"
            )
    if not count.value:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        got = "none" if visible is None else f"none with CUDA_VISIBLE_DEVICES={visible!r}"
        raise PyxlaError(mismatch("CUDA", "device", "a GPU", got), "set PJRT_DEVICE=CPU, or make a GPU visible")
    return tuple(_gpu(cuda, index) for index in range(count.value))


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    memory = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    return Gpu(name.value.decode(), (capability[0], capability[1]), memory.value)


def driver_version() -> tuple[int, int]:
    """The newest CUDA version that the driver can run. Call `gpus` before, which checks that there is a driver."""
    version = ctypes.c_int()
    driver.load().cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def check_driver(plugin: Plugin) -> None:
    """Raises PyxlaError if the driver is too old for the plugin's CUDA."""
    have = driver_version()
    if have[0] < plugin.cuda:
        raise PyxlaError(
            mismatch(
                "CUDA", "driver", f"one for CUDA {plugin.cuda}, as {plugin.origin} needs", f"CUDA {have[0]}.{have[1]}"
            ),
            "update the driver"
            + ("" if plugin.cuda == 12 else ", or install jax-cuda12-pjrt in its place and build the ops for CUDA 12"),
        )


def check_api_version(plugin: Plugin, version: tuple[int, int]) -> None:
    """Raises PyxlaError if pjrt_proxy does not support a plugin with this version of the PJRT C API."""
    oldest, newest = API_VERSIONS
    if version[0] != oldest[0] or version < oldest:
        wheel = f"jax-cuda{plugin.cuda}-pjrt==0.11.2"
        raise PyxlaError(
            mismatch(
                "CUDA",
                "plugin",
                f"PJRT API {oldest[0]}.{oldest[1]} or a newer minor version (tested to {newest[0]}.{newest[1]})",
                f"{plugin.origin} (PJRT API {version[0]}.{version[1]})",
            ),
            f"unset PYXLA_PJRT_PLUGIN, or name that of {wheel}" if plugin.is_named else f"pip install {wheel}",
        )
