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
from typing import NamedTuple

from pyxla.errors import PyxlaError, mismatch
from pyxla.pjrt import driver
from pyxla.pjrt.cuda_libraries import LIBRARIES, OPTIONAL, in_package
from pyxla.pjrt.platform import requested_device

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
    """A GPU that the driver reports: its name and compute capability."""

    name: str
    capability: tuple[int, int]


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
    return Gpu(name.value.decode(), (capability[0], capability[1]))


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


def proxy_path() -> Path:
    """The path of pjrt_proxy: built in the checkout, else installed in the wheel.

    Raises:
        PyxlaError: there is none.
    """
    here = Path(__file__).resolve().parents[1]
    places = (here.parent / "build/lib/pyxla_pjrt_proxy.so", here / "pyxla_pjrt_proxy.so")
    for place in places:
        if place.is_file():
            return place
    raise PyxlaError(
        mismatch("CUDA", "pjrt_proxy", f"{places[0].name}", f"none in {places[0].parent}"), "devtool build"
    )


def take_error() -> str | None:
    """The first error of an execution on XLA's CUDA device since the last call, or None; pjrt_proxy keeps it."""
    if requested_device() != "CUDA":
        return None
    text = ctypes.create_string_buffer(4096)
    take = ctypes.CDLL(str(proxy_path())).pyxla_take_error
    take.restype = ctypes.c_bool
    return text.value.decode(errors="replace") if take(text, ctypes.c_size_t(len(text))) else None


def ask_stream(device: int) -> int:
    """A stream of XLA's on a device. The next tensor that this thread imports waits for what the stream then holds.

    Raises:
        PyxlaError: the plugin gives none.
    """
    stream = ctypes.c_ssize_t()
    ask = ctypes.CDLL(str(proxy_path())).pyxla_ask_stream
    ask.restype = ctypes.c_bool
    if not ask(ctypes.c_size_t(device), ctypes.byref(stream)):
        raise PyxlaError(mismatch("CUDA", "plugin", f"a stream of device {device}", "none"), "devtool doctor")
    return stream.value


class Memory(NamedTuple):
    """Bytes of a device's memory that XLA has in use, the most that it had, and the most that it may have."""

    used: int
    peak: int
    limit: int


def memory_of(device: int) -> Memory:
    """What XLA's allocator has counted on a device.

    torch_xla says it too, but not in SPMD mode.

    Args:
        device: its number among XLA's.

    Raises:
        PyxlaError: the plugin does not count.
    """
    figures = (ctypes.c_int64 * 3)()
    ask = ctypes.CDLL(str(proxy_path())).pyxla_memory_stats
    ask.restype = ctypes.c_bool
    if not ask(ctypes.c_size_t(device), figures):
        raise PyxlaError(mismatch("CUDA", "plugin", f"the memory of device {device}", "none"), "devtool doctor")
    return Memory(*figures)


def set_compile_options(more: bytes) -> None:
    """Sets what pjrt_proxy adds to the options of every compilation from now on; empty bytes: nothing.

    Args:
        more: serialized fields of a CompileOptionsProto.
    """
    ctypes.CDLL(str(proxy_path())).pyxla_set_compile_options(more, ctypes.c_size_t(len(more)))


class Graphs(NamedTuple):
    """How many graphs pjrt_proxy has had compiled in this process, and how many it has loaded from files."""

    compiled: int
    loaded: int


def keep_graphs(folder: Path | None) -> None:
    """Keeps the graphs that the plugin compiles from now on, and loads those that another process has kept.

    torch_xla's own files (`torch_xla.runtime.initialize_cache`) cannot be loaded with any plugin.

    Args:
        folder: for this plugin and this kind of GPU; it is made if it is not there. Processes may share it. None: no
            graph is kept.

    Raises:
        PyxlaError: the folder cannot be made.
    """
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PyxlaError(mismatch("CUDA", "folder", "one for graphs", error), "name another folder") from error
    ctypes.CDLL(str(proxy_path())).pyxla_keep_graphs(os.fsencode(folder or ""))


def graphs() -> Graphs:
    """The counts, without the graphs that were compiled to be inspected."""
    counts = (ctypes.c_int64 * 2)()
    ctypes.CDLL(str(proxy_path())).pyxla_graph_counts(counts)
    return Graphs(*counts)
