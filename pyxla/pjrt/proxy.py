"""What pjrt_proxy does besides forwarding calls: errors, streams, memory, options of compilations, graphs in files."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from pathlib import Path
from typing import NamedTuple

from pyxla.errors import PyxlaError, mismatch
from pyxla.pjrt.client_options import client_options, uses_vmm
from pyxla.pjrt.cuda_plugin import find_plugin, gpus
from pyxla.pjrt.platform import requested_device


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
    take = _library().pyxla_take_error
    take.restype = ctypes.c_bool
    return text.value.decode(errors="replace") if take(text, ctypes.c_size_t(len(text))) else None


def ask_stream(device: int) -> int:
    """A stream of XLA's on a device. The next tensor that this thread imports waits for what the stream then holds.

    Args:
        device: the GPU's number, as CUDA counts it.

    Raises:
        PyxlaError: the plugin gives none.
    """
    stream = ctypes.c_ssize_t()
    ask = _library().pyxla_ask_stream
    ask.restype = ctypes.c_bool
    if not ask(ctypes.c_int(device), ctypes.byref(stream)):
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
    ask = _library().pyxla_memory_stats
    ask.restype = ctypes.c_bool
    if not ask(ctypes.c_size_t(device), figures):
        hint = "devtool doctor"
        if uses_vmm():
            hint = "unset PYXLA_ALLOCATOR: vmm does not count; or, with vLLM, set --kv-cache-memory-bytes"
        raise PyxlaError(mismatch("CUDA", "plugin", f"the memory of device {device}", "none"), hint)
    return Memory(*figures)


def set_compile_options(more: bytes) -> None:
    """Sets what pjrt_proxy adds to the options of every compilation from now on; empty bytes: nothing.

    Meanwhile graphs are neither loaded from files nor kept.

    Args:
        more: serialized fields of a CompileOptionsProto.
    """
    _library().pyxla_set_compile_options(more, ctypes.c_size_t(len(more)))


def set_process_options(more: bytes) -> None:
    """Sets what pjrt_proxy adds to the options of every compilation of this process; graphs are kept in files with it.

    Args:
        more: serialized fields of a CompileOptionsProto.
    """
    _library().pyxla_set_process_options(more, ctypes.c_size_t(len(more)))


class Graphs(NamedTuple):
    """How many graphs pjrt_proxy has had compiled in this process, and how many it has loaded from files."""

    compiled: int
    loaded: int


def keep_graphs(folder: Path | None) -> None:
    """Keeps the graphs that the plugin compiles from now on, and loads those that another process has kept.

    torch_xla's own files (`torch_xla.runtime.initialize_cache`) cannot be loaded with any plugin.

    Args:
        folder: gets a folder for these versions and this kind of GPU. Processes may share it. None: nothing is kept.

    Raises:
        PyxlaError: the folder cannot be made, or there is no GPU.
    """
    if folder is not None:
        folder /= _versions()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PyxlaError(mismatch("CUDA", "folder", "one for graphs", error), "name another folder") from error
    _library().pyxla_keep_graphs(os.fsencode(folder or ""))


def graphs() -> Graphs:
    """The counts, without the graphs that were compiled to be inspected."""
    counts = (ctypes.c_int64 * 2)()
    _library().pyxla_graph_counts(counts)
    return Graphs(*counts)


def _versions() -> str:
    """All that decides what a program is compiled to, besides the program, its options and XLA_FLAGS."""
    plugin = find_plugin()
    origin = plugin.origin
    if plugin.is_named:
        # It has no version.
        file = plugin.path.stat()
        origin = f"{plugin.path.stem} {file.st_size} {file.st_mtime_ns}"
    packages = [f"{name}-{importlib.metadata.version(name)}" for name in ("torch_xla", "pyxla")]
    first = client_options().get("visible_devices", [0])[0]
    gpu = (gpus()[first:] or gpus())[0]
    return "_".join([origin, *packages, gpu.name]).replace(" ", "-")


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(proxy_path()))
