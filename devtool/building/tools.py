"""Finds what a build needs: CMake, ninja, the compilers, and files of other packages."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path

from devtool.errors import DevtoolError
from devtool.processes import locate


def require_tool(name: str) -> str:
    """The path of a tool that the locked wheels bring.

    Raises:
        DevtoolError: there is none.
    """
    path = locate(name)
    if path is None:
        raise DevtoolError(
            f"build: {name}: expected it beside {sys.executable} or on PATH, got none",
            "run bin/devtool, which installs the locked tools",
        )
    return path


def compiler() -> str | None:
    """The C++ compiler that CMake will take, or None."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError:  # an unclosed quotation
        return None
    return next(filter(None, map(shutil.which, named[:1] or ("c++", "g++", "clang++"))), None)


def require_compiler() -> None:
    """Raises a DevtoolError if there is no C++ compiler."""
    if compiler() is None:
        raise DevtoolError(
            f"build: compiler: expected a C++20 compiler ({os.environ.get('CXX') or 'c++ or g++'}), got none on PATH",
            "apt-get install g++, or name one in CXX",
        )


def toolchain() -> list[Path]:
    """The files that change a build: compilers, Triton, XLA's headers, found as in pyxla/cmake/CMakeLists.txt."""
    found = [Path(tool) for tool in (compiler(), find_nvcc()) if tool]
    return [*found, *in_wheel("jaxlib", "include/xla/ffi/api/ffi.h"), *in_wheel("triton", "__init__.py")]


def find_nvcc() -> str | None:
    """nvcc, found as in pyxla/cmake/CMakeLists.txt: from CUDACXX, else from PATH, the CUDA toolkit, or the wheel."""
    named = os.environ.get("CUDACXX")
    places = [named] if named else ["nvcc", "/usr/local/cuda/bin/nvcc", *map(str, in_wheel("nvidia", "cu13/bin/nvcc"))]
    return next(filter(None, map(shutil.which, places)), None)


def in_wheel(package: str, name: str) -> list[Path]:
    """The paths that a file of a package may have; the package is not imported."""
    spec = importlib.util.find_spec(package)
    return [Path(folder, name) for folder in (spec.submodule_search_locations or [])] if spec else []
