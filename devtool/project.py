"""Where things are in the repository: its root, the op folders, build folders and libraries."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from devtool.errors import DevtoolError, unknown
from devtool.repository import Repository, find_repository, make_importable


@cache
def repository() -> Repository:
    """The repository that contains the working directory, else the checkout of pyxla that contains this file.

    From then on Python can import its package.

    Raises:
        DevtoolError: there is none, or it is not what devtool can work with.
    """
    here, working = Path(__file__).resolve().parent.parent, Path.cwd()
    is_checkout = (here / "kernels").is_dir() and not working.is_relative_to(here)
    found = find_repository(working, otherwise=here if is_checkout else None)
    make_importable(found)
    return found


def root() -> Path:
    """The root of the repository."""
    return repository().root


def checkout(where: str) -> Path:
    """The root of pyxla's own checkout.

    Raises:
        DevtoolError: devtool works in another repository, where the command `where` has nothing to do.
    """
    if repository().package != "pyxla_kernels":
        message = f"{where}: repository: expected pyxla's own checkout, got {root()}"
        raise DevtoolError(message, f"cd into a checkout of pyxla for devtool {where}")
    return root()


def kernels() -> Path:
    """The folder that contains the op folders."""
    return root() / "kernels"


def module(folder: str, file: str | None = None) -> str:
    """The name of a module in an op's folder, by default of the file with the op."""
    return f"{repository().package}.{folder}.{file or folder}"


def qualified(op: str) -> str:
    """The name of an op or a folder with the namespace: what pyxla finds it by, whatever other packages have."""
    return f"{repository().namespace}::{op}"


def pyxla_folder() -> Path:
    """The folder of the package pyxla, with the headers and the CMake recipe; the package is not imported.

    Raises:
        DevtoolError: this Python has no pyxla.
    """
    spec = importlib.util.find_spec("pyxla")
    if spec is None or not spec.submodule_search_locations:
        raise DevtoolError(
            f"devtool: pyxla: expected the package beside {sys.executable}, got none",
            "run bin/devtool in a checkout of pyxla, which installs it",
        )
    return Path(spec.submodule_search_locations[0]).resolve()


def op_names() -> list[str]:
    """All folders with <folder>_ffi.cc or `implements`: the same as the build finds (pyxla/cmake/CMakeLists.txt)."""
    ops = {p.parent.name for p in kernels().glob("*/*_ffi.cc") if p.name == f"{p.parent.name}_ffi.cc"}
    return sorted(ops | implementations().keys())


def implementations() -> dict[str, str]:
    """Folder of an implementation -> the op that its file `implements` names."""
    return {p.parent.name: p.read_text(encoding="utf-8").strip() for p in kernels().glob("[a-z]*/implements")}


def with_implementations(folders: Sequence[str]) -> list[str]:
    """These folders, each op before its implementations, each folder once."""
    by_op = implementations()
    together = [name for folder in folders for name in (folder, *(i for i in sorted(by_op) if by_op[i] == folder))]
    return list(dict.fromkeys(together))


def select_ops(where: str, names: Sequence[str]) -> list[str]:
    """These ops, each once, or all of them if none is named.

    Raises:
        DevtoolError: there is no such op.
    """
    known = op_names()
    for name in names:
        if name not in known:
            if (kernels() / name).is_dir():
                message = f"{where}: OP: expected kernels/{name}/{name}_ffi.cc, got a folder without it"
                raise DevtoolError(message, "write the file with the handlers and the op table (kernels/README.md)")
            raise unknown(where, "OP", "a folder of kernels/", name, known, f"devtool new-op {name}")
    return list(dict.fromkeys(names)) or known


def op_of_folder(folder: str) -> str:
    """pyxla's name of the op or the implementation in this folder: `rms_norm.triton` for rms_norm_triton."""
    op = implementations().get(folder)
    return f"{op}.{folder.removeprefix(f'{op}_')}" if op else folder


def folder_of(op: str) -> str:
    """The folder of an op: the folder of this name, else the one whose Python file defines the function, else the name.

    The folder of `rms_norm.triton` is rms_norm_triton.
    """
    op = op.replace(".", "_")
    defines = re.compile(rf"^def {re.escape(op)}\(", re.MULTILINE)
    folders = op_names()
    files = {folder: kernels() / folder / f"{folder}.py" for folder in folders if op not in folders}
    return next((folder for folder, path in files.items() if path.is_file() and defines.search(path.read_text())), op)


def device_targets() -> list[str]:
    """What is built for the CUDA device in addition to the ops, if pyxla is this checkout's, as CMake decides too."""
    return ["pjrt_proxy", "set_device"] if pyxla_folder().parent == root() else []


def build_folder(sanitize: str | None = None) -> Path:
    """Where CMake works, one folder per sanitizer."""
    return root() / "build" / (f"cmake-{sanitize}" if sanitize else "cmake")


def library_folder(sanitize: str | None = None) -> Path:
    """Where the libraries go; pyxla looks for them in build/lib."""
    return root() / "build" / (f"lib-{sanitize}" if sanitize else "lib")


def library(op: str, sanitize: str | None = None) -> Path:
    """The library of an op, built or not."""
    return library_folder(sanitize) / f"lib{op}.so"
