"""The CUDA kernels in an op's library, under the names that profilers show.

A kernel in a command buffer can be identified only by its name: XLA's profile adds only the command buffer.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

__all__ = ["demangled", "kernel_names"]

# A cubin has a section of machine code for each kernel.
_SECTION = re.compile(rb"\0\.text\.([\w$]+)(?=\0)")


def kernel_names(library: Path) -> frozenset[str]:
    """Names of all kernels of a library, C++ names demangled: `void my_op::Kernel<float, 4>(float const*, long)`.

    Args:
        library: path of an op's library, whose machine code must not be compressed.
    """
    return frozenset(demangled(name.decode()) for name in _SECTION.findall(library.read_bytes()))


def demangled(name: str) -> str:
    """A C++ name as in the source, with namespaces and parameters; any other name does not change."""
    demangle, free = _demangler()
    text = demangle(name.encode(), None, None, None)
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode()
    finally:
        free(text)


@cache
def _demangler() -> tuple[Callable, Callable]:
    """The C++ runtime's function, and free() for its results.

    Nix's loader does not find libstdc++.so.6 by name. torch's libc10 is linked to torch's C++ runtime.
    """
    (torch,) = importlib.util.find_spec("torch").submodule_search_locations
    demangle, free = ctypes.CDLL(f"{torch}/lib/libc10.so")["__cxa_demangle"], ctypes.CDLL(None)["free"]
    demangle.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return demangle, free
