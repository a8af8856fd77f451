"""LD_PRELOAD for a process that runs ops, so that their libraries are loaded before XLA asks for them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from devtool.building.tools import compiler
from devtool.errors import DevtoolError

# Between two entries of LD_PRELOAD, and before a name that the loader fills in.
_SPECIAL = set(" :$")


@contextmanager
def preloading(libraries: Sequence[Path], sanitize: str | None = None) -> Iterator[str]:
    """Yields the value of LD_PRELOAD, good in this context: the sanitizer, the libraries, the caller's other entries.

    Where LD_PRELOAD cannot name the path of a library, it names a link to the library's folder.

    Raises:
        DevtoolError: the compiler lacks the sanitizer.
    """
    names = {path.name for path in libraries}
    entries = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    others = [entry for entry in entries if Path(entry).name not in names]
    temporary = tempfile.gettempdir()  # TMPDIR may contain a space, too
    place = "/tmp" if _SPECIAL & set(temporary) else temporary
    with tempfile.TemporaryDirectory(prefix="devtool-preload-", dir=place) as scratch:
        links: dict[Path, Path] = {}
        for folder in {path.parent for path in libraries if _SPECIAL & set(str(path))}:
            links[folder] = Path(scratch, str(len(links)))
            links[folder].symlink_to(folder)
        named = [str(links.get(path.parent, path.parent) / path.name) for path in libraries]
        yield " ".join([*_sanitizer_runtime(sanitize), *named, *others])


def _sanitizer_runtime(sanitize: str | None) -> list[str]:
    # UndefinedBehaviorSanitizer's runtime comes with the library; AddressSanitizer's must be loaded before any malloc.
    if "address" not in (sanitize or "").split(","):
        return []
    command = [compiler(), "-print-file-name=libasan.so"]
    path = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(path).is_absolute():
        hint = "apt-get install g++, and name it in CXX if another compiler comes first"
        raise DevtoolError(f"test: --sanitize: expected g++ with libasan.so, got {command[0]} without it", hint)
    return [path]
