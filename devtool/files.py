"""Writes files whole or not at all, and checks before any work that a file can be written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from devtool.errors import MISUSED, DevtoolError


def require_writable(option: str, path: Path, exit_code: int = MISUSED) -> None:
    """Checks that a file could be written.

    Args:
        option: the command and its option that names the file, for the error.
        path: the file.
        exit_code: the error's exit status.

    Raises:
        DevtoolError: its folder does not exist, or the file or folder cannot be written.
    """
    if not path.parent.is_dir():
        message = f"{option}: expected a file in a folder that exists, got {path}"
        raise DevtoolError(message, f"mkdir -p {path.parent}", exit_code)
    written = [path] if _is_stream(path) else [path.resolve().parent, *([path] if path.exists() else [])]
    if path.is_dir() or not all(os.access(place, os.W_OK) for place in written):
        message = f"{option}: expected a file that can be written, got {path}"
        raise DevtoolError(message, "name another file", exit_code)


def write_atomic(path: Path, text: str) -> None:
    """Writes the file; if that fails, an existing file does not change. A link, a pipe or a device stays one.

    Raises:
        OSError: the file cannot be written.
    """
    if _is_stream(path):
        path.write_text(text, encoding="utf-8")
        return
    with replacing(path.resolve()) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a new file next to `path`, which replaces `path` at the end of the block, or is removed if that fails."""
    unfinished = path.with_name(f".{path.name}.new")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def _is_stream(path: Path) -> bool:
    """Whether it is a pipe or a device, such as /dev/stdout."""
    return path.exists() and not path.is_file() and not path.is_dir()
