"""Finds the library of an op: preloaded through LD_PRELOAD, else built in the checkout, else installed in a wheel."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyxla.errors import LibraryError, VersionError, mismatch
from pyxla.library.manifest import check_digest, check_table, check_wrapped, manifest_path, read_manifest
from pyxla.library.op_table import OpTable, check_elf, read_op_table, rebuild
from pyxla.library.source_digest import source_digest
from pyxla.packages import NAMESPACE, kernel_packages, package_of_folder, packages_of

__all__ = ["Library"]


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
def preloaded_libraries() -> tuple[Library, ...]:
    """The custom-call libraries among LD_PRELOAD's entries.

    Raises:
        LibraryError: an entry cannot be loaded or differs from its manifest, or two entries have the same op.
    """
    found: dict[tuple[str, str], Library] = {}
    for entry in re.split(r"[: ]+", os.environ.get("LD_PRELOAD", "").strip()):
        path = _mapped_path(entry) if entry else None
        # Skips libraries that are not pyxla's, without reading the files next to them.
        if path is None or read_op_table(path) is None:
            continue
        library = _load(path, "preloaded")
        op = library.table.op
        other = found.get((library.table.namespace, op))
        if other is not None and other.path.resolve() != path.resolve():
            raise LibraryError(
                mismatch(op, "LD_PRELOAD", "one library with this op", f"{other.path} and {path}"),
                "take one of them out of LD_PRELOAD",
            )
        found[library.table.namespace, op] = library
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


def library_path(op: str, namespace: str = NAMESPACE) -> tuple[Path, str] | None:
    """Path and origin of an op's library, without loading it; None if there is none."""
    if library := _preloaded(op, namespace):
        return library.path, library.origin
    for package in packages_of(namespace):
        built = package.folder.parent / "build" / "lib" / f"lib{op}.so"
        if package.is_checkout and built.is_file():
            return built, "checkout"
        if (installed := package.folder / op / built.name).is_file():
            return installed, "installed"
    return None


def _preloaded(op: str, namespace: str) -> Library | None:
    return next((p for p in preloaded_libraries() if (p.table.op, p.table.namespace) == (op, namespace)), None)


def find_library(op: str, namespace: str = NAMESPACE) -> Library:
    """Loads the library of an op and compares it with its manifest and, if they are at hand, with its sources.

    Args:
        op: the folder of the op or the implementation.
        namespace: of the op.

    Raises:
        LibraryError: there is none, it is corrupt, it is another op's, it differs from its manifest, or it is stale.
    """
    library = _preloaded(op, namespace)
    if library is None:
        place = library_path(op, namespace)
        if place is None:
            raise LibraryError(
                mismatch(op, "library", f"lib{op}.so", "none preloaded, built or installed"), f"devtool build {op}"
            )
        library = load_library(op, *place, namespace)
    check_fresh(library)
    return library


def load_library(op: str, path: Path, origin: str, namespace: str = NAMESPACE) -> Library:
    """Loads the library of an op from `path`, after comparing it with its manifest.

    Args:
        op: name of the op.
        path: the file.
        origin: "preloaded", "checkout" or "installed".
        namespace: of the op.

    Raises:
        LibraryError: it is corrupt, it is another op's, it differs from its manifest, or it has none.
    """
    library = _load(path, origin)
    if library is None or (library.table.op, library.table.namespace) != (op, namespace):
        got = f"that of {library.table.qualified_op}" if library else "none"
        wanted = op if namespace == NAMESPACE else f"{namespace}::{op}"
        raise LibraryError(
            mismatch(op, "library", f"the op table of {wanted}", f"{got} in {path}"), f"devtool build {op}"
        )
    return library


def unsupported_libraries() -> Iterator[VersionError]:
    """The installed libraries that this pyxla does not load, as far as their manifests say so; loads none."""
    for package in kernel_packages():
        for manifest in () if package.is_checkout else sorted(package.folder.glob("*/lib*.json")):
            try:
                read_manifest(manifest.with_suffix(".so"))
            except VersionError as error:
                yield error
            except LibraryError:  # raised when the op is called
                continue


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
    elif origin != "preloaded" and _sources_digest(table) is None:
        raise LibraryError(
            mismatch(table.op, "manifest", f"{manifest_path(path).name} beside the library", f"none beside {path}"),
            f"install library and manifest together, or {rebuild(path)} in a checkout",
        )
    return Library(path, origin, table)


def _sources_digest(table: OpTable) -> str | None:
    package = package_of_folder(table.op, table.namespace)
    return source_digest(package.folder, table.op) if package else None


def check_fresh(library: Library) -> None:
    """Raises LibraryError if the op's sources are at hand and differ from those that the library was built from."""
    op, built_from = library.table.op, library.table.source_digest
    digest = _sources_digest(library.table)
    if digest is not None and digest != built_from:
        folder = package_of_folder(op, library.table.namespace).folder
        raise LibraryError(
            mismatch(
                op,
                "library",
                f"source digest {digest[:12]} (the sources in {folder})",
                f"{built_from[:12]} in {library.path}",
            ),
            f"devtool build {op} --clean",
        )
