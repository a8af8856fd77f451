"""The source digest of an op: SHA-256 over its sources, which tells a stale library from a fresh one.

The build writes the same digest into the library (pyxla/cmake/source_digest.cmake).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pyxla.paths import include_dir

_PATTERNS = (
    "{op}/**/*.h",
    "{op}/**/*.cuh",
    "{op}/**/*.cc",
    "{op}/**/*.cu",
    "{op}/triton_kernels.py",
    "{op}/wrapped.json",
    "{op}/implements",
    "{op}/vendor/**/*",
    "_*/**/*.h",
    "_*/**/*.cuh",
)
# What pyxla brings to each library, in its own folder: the headers and the CMake recipe.
_PYXLA = ("include/**/*.h", "include/**/*.cuh", "cmake/*")
# Sources of the op whose host code is compiled into the library of an implementation.
_INHERITED = ("{op}/**/*.h", "{op}/**/*.cuh", "{op}/**/*.cc")


def implemented_op(kernels: Path, folder: str) -> str | None:
    """The op that a folder implements, from its file `implements`; None if there is no such file."""
    try:
        return (kernels / folder / "implements").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def source_digest(kernels: Path, op: str) -> str | None:
    """SHA-256 over all sources of lib<op>.so, or None if the folder has no sources (an installed wheel).

    Args:
        kernels: the folder with the op folders.
        op: name of the folder, an op's or an implementation's.
    """
    implemented = implemented_op(kernels, op)
    home = implemented or op
    if not (kernels / home / f"{home}_ffi.cc").is_file():
        return None
    patterns = [pattern.format(op=op) for pattern in _PATTERNS]
    if implemented:
        patterns += [pattern.format(op=implemented) for pattern in _INHERITED]
    listing = _listing(kernels, "", patterns) + _listing(Path(include_dir()).parent, "pyxla/", _PYXLA)
    return hashlib.sha256(listing.encode()).hexdigest()


def _listing(folder: Path, prefix: str, patterns: Iterable[str]) -> str:
    """A line with SHA-256 and name per file, in the order of the names."""
    names = {p.relative_to(folder).as_posix() for pattern in patterns for p in folder.glob(pattern) if p.is_file()}
    return "".join(
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {prefix}{name}\n" for name in sorted(names)
    )
