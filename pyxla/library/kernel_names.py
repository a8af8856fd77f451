"""The CUDA kernels in an op's library, under the names that profilers show.

A kernel in a command buffer can be identified only by its name: XLA's profile adds only the command buffer.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

__all__ = ["kernel_names"]

# A cubin has a section of machine code for each kernel.
_SECTION = re.compile(rb"\0\.text\.([\w$]+)(?=\0)")


def kernel_names(library: Path) -> frozenset[str]:
    """Names of all kernels of a library, C++ names demangled: `void my_op::Kernel<float, 4>(float const*, long)`.

    Args:
        library: path of an op's library, whose machine code must not be compressed.
    """
    return frozenset(_demangled(name) for name in _SECTION.findall(library.read_bytes()))


def _demangled(name: bytes) -> str:
    runtime, free = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None).free
    runtime.__cxa_demangle.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    text = runtime.__cxa_demangle(name, None, None, None)
    if not text:  # a C name
        return name.decode()
    try:
        return ctypes.string_at(text).decode()
    finally:
        free(text)
