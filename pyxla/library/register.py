"""Registers the handlers of a library with XLA, each target once per process.

torch_xla's own `_xla_register_custom_call_target` cannot register a typed FFI handler. For the platform "Host" `_XLAC`
has XLA_FFI_GetApi, whose table has a function for it; for "CUDA" the plugin has an extension (pyxla/pjrt/c_api.py).
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from pyxla.errors import LibraryError, mismatch
from pyxla.library.find import Library, find_library, preloaded_libraries
from pyxla.library.op_table import Handler
from pyxla.packages import NAMESPACE
from pyxla.pjrt import c_api, cuda_plugin, ffi_c_api
from pyxla.torch_xla_patches import symbols

_registered: dict[tuple[str, str], Path] = {}
_lock = threading.Lock()


@cache
def _host_api() -> ffi_c_api.Api:
    # The first is of torch_xla 2.8, the second of 2.9.
    place = symbols.address("ops", "XLA_FFI_GetApi", "_ZN3xla3ffi12GetXlaFfiApiEv")
    return ctypes.CFUNCTYPE(ctypes.POINTER(ffi_c_api.Api))(place)().contents


def ensure_registered(
    op: str,
    target: str,
    platform: str,
    capabilities: Iterable[tuple[int, int]] | None = None,
    namespace: str = NAMESPACE,
) -> None:
    """Registers the handlers of the op's library, if `target` is not yet registered on `platform`.

    Args:
        op: name of the op.
        target: name of the custom call's target.
        platform: "Host" or "CUDA".
        capabilities: as for register_library.
        namespace: of the op.

    Raises:
        LibraryError: no library, one that a check refuses, or one without this target on this platform.
    """
    if (target, platform) in _registered:
        return
    with _lock:
        library = find_library(op, namespace)
        register_library(library, platform, capabilities)
    if (target, platform) not in _registered:
        raise missing_target(op, library, target, platform)


def missing_target(op: str, library: Library, target: str, platform: str) -> LibraryError:
    """The error for a library without a handler of this target on this platform."""
    handlers = library.table.handlers
    have = ", ".join(f"{h.target} on {h.platform}" for h in handlers) or "no handler"
    name = library.table.op
    if any(h.platform == platform for h in handlers):  # another build would make the same library
        hint = f"PYXLA_OP_TABLE in {name}_ffi.cc names the targets; Python's function of the op names {target}"
    else:
        hint = f"devtool build {name}" + " --cuda on" * (platform == "CUDA")
    return LibraryError(mismatch(op, "target", f"{target} on {platform}", f"{have} in {library.path}"), hint)


def register_preloaded(platform: str = "Host") -> tuple[Library, ...]:
    """Registers the handlers of every preloaded library and returns the libraries.

    Args:
        platform: "Host" or "CUDA".

    Raises:
        LibraryError: a check refuses a library, or two libraries have the same target.
    """
    libraries = preloaded_libraries()
    with _lock:
        for library in libraries:
            register_library(library, platform)
    return libraries


def registered() -> dict[tuple[str, str], Path]:
    """(target, platform) of each handler that is registered in this process -> its library."""
    return dict(_registered)


def register_library(
    library: Library, platform: str = "Host", capabilities: Iterable[tuple[int, int]] | None = None
) -> None:
    """Registers the library's handlers of this platform.

    Args:
        library: from pyxla.library.find.
        platform: "Host" or "CUDA".
        capabilities: compute capabilities for which it must have CUDA code; None: those of this machine's GPUs.

    Raises:
        LibraryError: an FFI version that XLA cannot call, a driver that is too old, no code for a GPU, a target that
            another library has registered, or a refusal by XLA.
    """
    handlers = [handler for handler in library.table.handlers if handler.platform == platform]
    if platform == "Host":
        check_ffi_version(library, (_host_api().version.major, _host_api().version.minor))
    elif handlers:
        if capabilities is None:
            cuda_plugin.gpus()  # raises an error where there is no driver
            check_driver(library, cuda_plugin.driver_version())
        for capability in [gpu.capability for gpu in cuda_plugin.gpus()] if capabilities is None else capabilities:
            check_architecture(library, capability)
    for handler in handlers:
        key = (handler.target, handler.platform)
        owner = _registered.get(key)
        if owner is None:
            refusal = _register_host(handler) if platform == "Host" else _register_cuda(handler)
            if refusal is not None:
                got = f"{refusal!r} for {library.path}"
                raise LibraryError(
                    mismatch(library.table.op, "registration", f"{handler.target} to be new to XLA", got)
                )
            _registered[key] = library.path
        elif owner.resolve() != library.path.resolve():
            raise LibraryError(
                mismatch(
                    library.table.op, "target", f"one library with {handler.target}", f"{owner} and {library.path}"
                ),
                "remove one of the two libraries",
            )


def check_ffi_version(library: Library, runtime: tuple[int, int]) -> None:
    """Raises LibraryError unless an XLA with FFI API version `runtime` can call the library's handlers."""
    built_for = library.table.ffi_api_version
    if built_for[0] != runtime[0] or built_for[1] > runtime[1]:
        raise LibraryError(
            mismatch(
                library.table.op,
                "FFI API version",
                f"{runtime[0]}.{runtime[1]} or an older minor version, as torch_xla has it",
                f"{built_for[0]}.{built_for[1]} in {library.path}",
            ),
            f"install the locked jaxlib (bin/devtool does), then devtool build {library.table.op} --clean",
        )


def check_driver(library: Library, driver: tuple[int, int]) -> None:
    """Raises LibraryError if the driver is too old for the CUDA runtime in the library, which is nvcc's.

    Args:
        library: from pyxla.library.find.
        driver: the newest CUDA version that the driver can run; it also runs later minor versions.
    """
    nvcc = re.search(r"NVIDIA (\d+)\.", library.table.compiler)
    if nvcc and driver[0] < int(nvcc[1]):
        raise LibraryError(
            mismatch(
                library.table.op,
                "CUDA driver",
                f"one for CUDA {nvcc[1]}, as {library.path} needs",
                f"CUDA {driver[0]}.{driver[1]}",
            ),
            f"update the driver, or CUDACXX=<nvcc of CUDA {driver[0]}> devtool build {library.table.op} --clean",
        )


def check_architecture(library: Library, capability: tuple[int, int]) -> None:
    """Raises LibraryError unless the library has code that a GPU of this compute capability can run.

    Code for a real architecture runs on GPUs of its major version and of its or a later minor version ("90a": only on
    9.0). The driver compiles PTX ("100-virtual"; "100" is both) for any GPU that is not older ("100f": only for those
    of its major version).
    """
    for architecture in library.table.cuda_architectures:
        match = re.fullmatch(r"(\d+)(\d)([af]?)(-real|-virtual)?", architecture)
        if match is None:
            continue
        built_for = (int(match[1]), int(match[2]))
        if match[3] == "a":
            fits = built_for == capability
        elif match[3] == "f" or match[4] == "-real":
            fits = built_for[0] == capability[0] and built_for[1] <= capability[1]
        else:
            fits = built_for <= capability
        if fits:
            return
    have = ", ".join(library.table.cuda_architectures) or "no CUDA code"
    raise LibraryError(
        mismatch(
            library.table.op,
            "CUDA architecture",
            f"code for sm_{capability[0]}{capability[1]}",
            f"{have} in {library.path}",
        ),
        f"CUDAARCHS={capability[0]}{capability[1]} devtool build {library.table.op}, where its sources are",
    )


def _register_cuda(handler: Handler) -> str | None:
    stages = handler.instantiate, handler.prepare, handler.initialize, handler.execute
    return c_api.register_custom_call(cuda_plugin.find_plugin().path, handler.target, *stages)


def _register_host(handler: Handler) -> str | None:
    """Returns XLA's refusal, or None."""
    api = _host_api()
    args = ffi_c_api.RegisterArgs.of(
        ffi_c_api.ByteSpan.of(handler.target),
        ffi_c_api.ByteSpan.of(handler.platform),
        handler.instantiate,
        handler.prepare,
        handler.initialize,
        handler.execute,
        0,
    )
    error = ffi_c_api.HANDLER(api.handler_register)(ctypes.addressof(args))
    if not error:
        return None
    message = ffi_c_api.MessageArgs.of(error, None)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(api.error_get_message)(ctypes.addressof(message))
    text = (message.message or b"").decode()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(api.error_destroy)(ctypes.addressof(message))
    return text
