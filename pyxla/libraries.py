"""Finds the library of an op: preloaded through LD_PRELOAD, else built in the checkout, else installed in the wheel."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyxla.build_stamp import build_stamp
from pyxla.errors import LibraryError, mismatch
from pyxla.op_table import OpTable, read_op_table

KERNELS_PACKAGE = "pyxla_kernels"
_OP_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Library:
    """A loaded custom-call library.

    Attributes:
        path: the file.
        origin: "preloaded", "checkout" or "installed".
        table: what the library says of itself.
    """

    path: Path
    origin: str
    table: OpTable


@cache
def kernels_folder() -> Path | None:
    """The folder of the op folders: `kernels/` of the checkout or the installed package; None if there is neither."""
    spec = importlib.util.find_spec(KERNELS_PACKAGE)
    locations = list(spec.submodule_search_locations or []) if spec else []
    return Path(locations[0]).resolve() if locations else None


def op_names() -> list[str]:
    """Names of all ops that have a Python definition, in order."""
    folder = kernels_folder()
    if folder is None:
        return []
    return sorted(p.name for p in folder.iterdir() if _OP_NAME.fullmatch(p.name) and (p / f"{p.name}.py").is_file())


@cache
def preloaded_libraries() -> tuple[Library, ...]:
    """The custom-call libraries among LD_PRELOAD's entries.

    Raises:
        LibraryError: an entry cannot be loaded, or two entries hold the same op.
    """
    found: dict[str, Library] = {}
    for entry in re.split(r"[: ]+", os.environ.get("LD_PRELOAD", "").strip()):
        path = _mapped_path(entry) if entry else None
        table = read_op_table(path) if path else None
        if path is None or table is None:
            continue
        other = found.get(table.op)
        if other is not None and other.path.resolve() != path.resolve():
            raise LibraryError(
                mismatch(table.op, "LD_PRELOAD", "one library with this op", f"{other.path} and {path}"),
                "take one of them out of LD_PRELOAD",
            )
        found[table.op] = Library(path, "preloaded", table)
    return tuple(found.values())


def _mapped_path(entry: str) -> Path | None:
    """The file of an LD_PRELOAD entry; a bare name is looked up among the files that the process has mapped."""
    if "/" in entry:
        return Path(entry)
    mapped = {
        Path("/" + line.partition("/")[2]) for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
    }
    return next((path for path in mapped if path.name == entry), None)


def library_path(op: str) -> tuple[Path, str] | None:
    """Where an op's library lies, and its origin, without loading it; None if it is nowhere."""
    for library in preloaded_libraries():
        if library.table.op == op:
            return library.path, library.origin
    folder = kernels_folder()
    if folder is None:
        return None
    candidates = [(folder / op / f"lib{op}.so", "installed")]
    if (folder / "CMakeLists.txt").is_file():
        candidates.insert(0, (folder.parent / "build" / "lib" / f"lib{op}.so", "checkout"))
    return next((candidate for candidate in candidates if candidate[0].is_file()), None)


def find_library(op: str) -> Library:
    """Loads the library of an op and checks that it was built from the sources at hand.

    Raises:
        LibraryError: there is none, it is corrupt, it holds another op, or it is stale.
    """
    place = library_path(op)
    if place is None:
        raise LibraryError(
            mismatch(op, "library", f"lib{op}.so", "none preloaded, built or installed"), f"devtool build {op}"
        )
    path, origin = place
    table = read_op_table(path)
    if table is None or table.op != op:
        got = f"that of {table.op}" if table else "none"
        raise LibraryError(mismatch(op, "library", f"the op table of {op}", f"{got} in {path}"), f"devtool build {op}")
    check_fresh(op, path, table)
    return Library(path, origin, table)


def check_fresh(op: str, path: Path, table: OpTable) -> None:
    """Raises LibraryError if the op's sources are at hand and differ from those that the library was built from."""
    folder = kernels_folder()
    stamp = build_stamp(folder, op) if folder else None
    if stamp is not None and stamp != table.build_stamp:
        raise LibraryError(
            mismatch(
                op,
                "library",
                f"build stamp {stamp[:12]} (the sources in {folder})",
                f"{table.build_stamp[:12]} in {path}",
            ),
            f"devtool build {op} --clean",
        )
