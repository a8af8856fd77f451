"""The source digest of an op: SHA-256 over its sources, which tells a stale library from a fresh one.

The build writes the same digest into the library (kernels/cmake/source_digest.cmake).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_PATTERNS = (
    "{op}/**/*.h",
    "{op}/**/*.cuh",
    "{op}/**/*.cc",
    "{op}/**/*.cu",
    "{op}/triton_kernels.py",
    "{op}/wrapped.json",
    "{op}/vendor/**/*",
    "common/**/*.h",
    "common/**/*.cuh",
    "_*/**/*.h",
    "_*/**/*.cuh",
    "cmake/*",
    "CMakeLists.txt",
)


def source_digest(kernels: Path, op: str) -> str | None:
    """SHA-256 over all that goes into lib<op>.so, or None where the folder holds no sources (an installed wheel).

    Args:
        kernels: the folder that holds the op folders.
        op: name of the op folder.
    """
    if not (kernels / op / f"{op}_ffi.cc").is_file():
        return None
    names = {
        p.relative_to(kernels).as_posix()
        for pattern in _PATTERNS
        for p in kernels.glob(pattern.format(op=op))
        if p.is_file()
    }
    listing = "".join(
        f"{hashlib.sha256((kernels / name).read_bytes()).hexdigest()}  {name}\n" for name in sorted(names)
    )
    return hashlib.sha256(listing.encode()).hexdigest()
