"""Finds the library of an op: preloaded through LD_PRELOAD, else built in the checkout, else installed in the wheel."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyxla.errors import LibraryError, mismatch
from pyxla.library.manifest import check_digest, check_table, check_wrapped, manifest_path, read_manifest
from pyxla.library.op_table import OpTable, check_elf, read_op_table, rebuild
from pyxla.library.source_digest import implemented_op, source_digest

__all__ = ["Library"]

KERNELS_PACKAGE = "pyxla_kernels"
_OP_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Library:
    """A loaded custom-call library.

    Attributes:
        path: the file.
        origin: "preloaded", "checkout" or "installed".
        table: its op table.
    """

    path: Path
    origin: str
    table: OpTable


@cache
def kernels_folder() -> Path | None:
    """The folder with the op folders: `kernels/` of the checkout or the installed package; None if there is neither."""
    spec = importlib.util.find_spec(KERNELS_PACKAGE)
    locations = list(spec.submodule_search_locations or []) if spec else []
    return Path(locations[0]).resolve() if locations else None


def op_names() -> list[str]:
    """Names of all ops that have a Python definition, in order."""
    return [name for name, op in _folders().items() if op is None]


def implementations() -> dict[str, str]:
    """Folder of an implementation -> its op, for all that have a Python definition, in order."""
    return {name: op for name, op in _folders().items() if op is not None}


def _folders() -> dict[str, str | None]:
    """Folder with a Python file of its name -> the op that it implements; None if it is an op itself."""
    folder = kernels_folder()
    if folder is None:
        return {}
    names = sorted(p.name for p in folder.iterdir() if _OP_NAME.fullmatch(p.name) and (p / f"{p.name}.py").is_file())
    return {name: implemented_op(folder, name) for name in names}


@cache
def preloaded_libraries() -> tuple[Library, ...]:
    """The custom-call libraries among LD_PRELOAD's entries.

    Raises:
        LibraryError: an entry cannot be loaded or differs from its manifest, or two entries have the same op.
    """
    found: dict[str, Library] = {}
    for entry in re.split(r"[: ]+", os.environ.get("LD_PRELOAD", "").strip()):
        path = _mapped_path(entry) if entry else None
        # Skips libraries that are not pyxla's, without reading the files next to them.
        if path is None or read_op_table(path) is None:
            continue
        library = _load(path, "preloaded")
        op = library.table.op
        other = found.get(op)
        if other is not None and other.path.resolve() != path.resolve():
            raise LibraryError(
                mismatch(op, "LD_PRELOAD", "one library with this op", f"{other.path} and {path}"),
                "take one of them out of LD_PRELOAD",
            )
        found[op] = library
    return tuple(found.values())


def _mapped_path(entry: str) -> Path | None:
    """The file of an LD_PRELOAD entry.

    The loader searches for a bare name, and fills in $ORIGIN, $LIB and $PLATFORM in a path. Such an entry is looked up
    among the files that the process has mapped.
    """
    if "/" in entry and "$" not in entry:
        return Path(entry)
    mapped = {
        Path("/" + line.partition("/")[2]) for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
    }
    return next((path for path in mapped if path.name == Path(entry).name), None)


def library_path(op: str) -> tuple[Path, str] | None:
    """Path and origin of an op's library, without loading it; None if there is none."""
    for library in preloaded_libraries():
        if library.table.op == op:
            return library.path, library.origin
    folder = kernels_folder()
    if folder is None:
        return None
    candidates = [(folder / op / f"lib{op}.so", "installed")]
    if (folder.parent / "pyproject.toml").is_file():
        candidates.insert(0, (folder.parent / "build" / "lib" / f"lib{op}.so", "checkout"))
    return next((candidate for candidate in candidates if candidate[0].is_file()), None)


def find_library(op: str) -> Library:
    """Loads the library of an op and compares it with its manifest and, if they are at hand, with its sources.

    Raises:
        LibraryError: there is none, it is corrupt, it is another op's, it differs from its manifest, or it is stale.
    """
    library = next((library for library in preloaded_libraries() if library.table.op == op), None)
    if library is None:
        place = library_path(op)
        if place is None:
            raise LibraryError(
                mismatch(op, "library", f"lib{op}.so", "none preloaded, built or installed"), f"devtool build {op}"
            )
        library = load_library(op, *place)
    check_fresh(library)
    return library


def load_library(op: str, path: Path, origin: str) -> Library:
    """Loads the library of an op from `path`, after comparing it with its manifest.

    Args:
        op: name of the op.
        path: the file.
        origin: "preloaded", "checkout" or "installed".

    Raises:
        LibraryError: it is corrupt, it is another op's, it differs from its manifest, or it has none.
    """
    library = _load(path, origin)
    if library is None or library.table.op != op:
        got = f"that of {library.table.op}" if library else "none"
        raise LibraryError(mismatch(op, "library", f"the op table of {op}", f"{got} in {path}"), f"devtool build {op}")
    return library


def _load(path: Path, origin: str) -> Library | None:
    """The library; None if it has no op table."""
    check_elf(path)
    manifest = read_manifest(path)
    if manifest is not None:
        check_digest(path, manifest)  # before any of its code runs
        check_wrapped(path, manifest)
    table = read_op_table(path)
    if table is None:
        return None
    if manifest is not None:
        check_table(path, manifest, table)
    # Two kinds may lack one: a library that someone compiled by hand, which check_fresh compares with its sources; and
    # one that the user chose in LD_PRELOAD: it is loaded already, and its build may not write manifests.
    elif origin != "preloaded" and _sources_digest(table.op) is None:
        raise LibraryError(
            mismatch(table.op, "manifest", f"{manifest_path(path).name} beside the library", f"none beside {path}"),
            f"install library and manifest together, or {rebuild(path)} in a checkout",
        )
    return Library(path, origin, table)


def _sources_digest(op: str) -> str | None:
    folder = kernels_folder()
    return source_digest(folder, op) if folder else None


def check_fresh(library: Library) -> None:
    """Raises LibraryError if the op's sources are at hand and differ from those that the library was built from."""
    op, built_from = library.table.op, library.table.source_digest
    digest = _sources_digest(op)
    if digest is not None and digest != built_from:
        raise LibraryError(
            mismatch(
                op,
                "library",
                f"source digest {digest[:12]} (the sources in {kernels_folder()})",
                f"{built_from[:12]} in {library.path}",
            ),
            f"devtool build {op} --clean",
        )
