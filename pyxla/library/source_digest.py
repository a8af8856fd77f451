"""The source digest of an op: SHA-256 over its sources, which tells a stale library from a fresh one.

The build writes the same digest into the library (kernels/cmake/source_digest.cmake).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pyxla.packages import implemented_op

_PATTERNS = (
    "{op}/**/*.h",
    "{op}/**/*.cuh",
    "{op}/**/*.cc",
    "{op}/**/*.cu",
    "{op}/triton_kernels.py",
    "{op}/wrapped.json",
    "{op}/implements",
    "{op}/vendor/**/*",
    "common/**/*.h",
    "common/**/*.cuh",
    "_*/**/*.h",
    "_*/**/*.cuh",
    "cmake/*",
    "CMakeLists.txt",
)
# Sources of the op whose host code is compiled into the library of an implementation.
_INHERITED = ("{op}/**/*.h", "{op}/**/*.cuh", "{op}/**/*.cc")


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
    names = {p.relative_to(kernels).as_posix() for pattern in patterns for p in kernels.glob(pattern) if p.is_file()}
    listing = "".join(
        f"{hashlib.sha256((kernels / name).read_bytes()).hexdigest()}  {name}\n" for name in sorted(names)
    )
    return hashlib.sha256(listing.encode()).hexdigest()
