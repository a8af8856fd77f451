"""The C API of a PJRT plugin: the part that registers custom calls."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

# PJRT_Extension_Type_Gpu_Custom_Call.
_CUSTOM_CALL = 0
_TYPED_FFI = 1
_ERROR_DESTROY, _ERROR_MESSAGE = 0, 1


class _Version(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    ]


class _Extension(ctypes.Structure):
    pass


_Extension._fields_ = [
    ("struct_size", ctypes.c_size_t),
    ("type", ctypes.c_int),
    ("next", ctypes.POINTER(_Extension)),
    ("custom_call", ctypes.c_void_p),
]


class _Api(ctypes.Structure):
    # The head and the first functions of PJRT_Api.
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_Extension)),
        ("version", _Version),
        ("functions", ctypes.c_void_p * 2),
    ]


class _ErrorArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("message", ctypes.c_void_p),
        ("message_size", ctypes.c_size_t),
    ]


class _RegisterArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("function_name", ctypes.c_char_p),
        ("function_name_size", ctypes.c_size_t),
        ("api_version", ctypes.c_int),
        ("instantiate", ctypes.c_void_p),
        ("prepare", ctypes.c_void_p),
        ("initialize", ctypes.c_void_p),
        ("execute", ctypes.c_void_p),
    ]


@cache
def _api(plugin: Path) -> _Api:
    library = ctypes.CDLL(str(plugin))
    library.GetPjrtApi.restype = ctypes.POINTER(_Api)
    return library.GetPjrtApi().contents


def api_version(plugin: Path) -> tuple[int, int]:
    """Major and minor version of the PJRT C API of a plugin.

    Args:
        plugin: the library; the libraries that it opens by name must be loaded.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it is not a PJRT plugin.
    """
    version = _api(plugin).version
    return version.major, version.minor


def register_custom_call(
    plugin: Path,
    target: str,
    instantiate: int | None,
    prepare: int | None,
    initialize: int | None,
    execute: int | None,
) -> str | None:
    """Registers all stages of a typed FFI handler with a CUDA plugin; returns the plugin's refusal, or None.

    Args:
        plugin: the library.
        target: the custom call's target.
        instantiate: address of this stage's XLA_FFI_Handler, or None; the plugin asks the handler for its traits.
        prepare: the same for this stage.
        initialize: the same for this stage.
        execute: the same for this stage.
    """
    api = _api(plugin)
    extension = api.extension
    while extension and extension.contents.type != _CUSTOM_CALL:
        extension = extension.contents.next
    if not extension:
        return "the plugin has no extension for custom calls"
    name = target.encode()
    args = _RegisterArgs(
        ctypes.sizeof(_RegisterArgs), name, len(name), _TYPED_FFI,
        instantiate, prepare, initialize, execute,
    )  # fmt: skip
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    error = function(extension.contents.custom_call)(ctypes.addressof(args))
    return _message(api, error) if error else None


def _message(api: _Api, error: int) -> str:
    """Returns the text of a PJRT_Error and destroys the error."""
    args = _ErrorArgs(ctypes.sizeof(_ErrorArgs), None, error, None, 0)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(api.functions[_ERROR_MESSAGE])(ctypes.addressof(args))
    text = ctypes.string_at(args.message, args.message_size).decode(errors="replace")
    destroy = _ErrorArgs(ctypes.sizeof(ctypes.c_size_t) * 3, None, error, None, 0)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(api.functions[_ERROR_DESTROY])(ctypes.addressof(destroy))
    return text
