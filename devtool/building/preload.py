"""LD_PRELOAD for a process that runs ops, so that their libraries are loaded before XLA asks for them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from devtool.building.build import compiler
from devtool.errors import DevtoolError


def preload(where: str, libraries: Sequence[Path], sanitize: str | None = None) -> str:
    """The value of LD_PRELOAD: the sanitizer, then the libraries, then the caller's other entries.

    Args:
        where: the name of the command, for the error.

    Raises:
        DevtoolError: a path contains a space or a colon, or the compiler lacks the sanitizer.
    """
    for path in libraries[:1]:
        if set(" :") & set(str(path)):
            raise DevtoolError(
                f"{where}: checkout: expected a path that LD_PRELOAD can name, got a space or colon in {path}",
                "move the checkout to a path without them",
            )
    names = {path.name for path in libraries}
    entries = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    others = (entry for entry in entries if Path(entry).name not in names)
    return " ".join([*_sanitizer_runtime(sanitize), *map(str, libraries), *others])


def _sanitizer_runtime(sanitize: str | None) -> list[str]:
    # UndefinedBehaviorSanitizer's runtime comes with the library; AddressSanitizer's must be loaded before any malloc.
    if sanitize != "address":
        return []
    command = [compiler(), "-print-file-name=libasan.so"]
    path = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(path).is_absolute():
        hint = "apt-get install g++, and name it in CXX if another compiler comes first"
        raise DevtoolError(f"test: --sanitize: expected g++ with libasan.so, got {command[0]} without it", hint)
    return [path]
