"""The folders of pyxla that a build of ops reads: the C++ and CUDA headers, and the CMake recipe."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def include_dir() -> str:
    """The include folder of pyxla's C++ and CUDA headers: `#include "pyxla/ffi/ffi.h"`.

    Returns:
        An absolute path, of a checkout or of the installed wheel.
    """
    return str(_PACKAGE / "include")


def cmake_dir() -> str:
    """The CMake project that builds a folder of ops: `cmake -S <this> -B build -DPYXLA_KERNELS=<folder>`.

    Returns:
        An absolute path, of a checkout or of the installed wheel.
    """
    return str(_PACKAGE / "cmake")
