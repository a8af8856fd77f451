"""The manifest of a library: lib<op>.json next to lib<op>.so, in which the build records what it built, and from what.

pyxla/cmake/manifest.cmake writes it. A library whose bytes or op table differ from it is refused: it was changed
after the build, or copied over another one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path

from pyxla.errors import LibraryError, mismatch
from pyxla.library.contract import MANIFESTS, OP_TABLES, check_version
from pyxla.library.op_table import OpTable, op_of, rebuild
from pyxla.packages import NAMESPACE

# The fields that are lists, with the type of their items; the others are text.
_LISTS = {"cuda_architectures": str, "ffi_api_version": int}
_NUMBERS = ("format", "op_table", "headers", "recipe")
_WRAPPED = "wrapped"
_NIXPKGS = "nixpkgs"
# What manifests of the first format lack, and what holds for them.
_FIRST_FORMAT = {"format": 1, "namespace": NAMESPACE, "op_table": None, "headers": None, "recipe": None}
# The fields that the op table also has.
_IN_TABLE = ("op", "namespace", "source_digest", "compiler", "flags_digest", "cuda_architectures", "ffi_api_version")


@dataclass(frozen=True)
class Wrapped:
    """The library or headers of others that an op wraps.

    Attributes:
        name, version, licence: as the op's wrapped.json states them.
        library: the file's name, in the folder <op>.wrapped next to lib<op>.so; None for headers.
        sha256: SHA-256 of that file; None for headers.
    """

    name: str
    version: str
    licence: str
    library: str | None
    sha256: str | None


@dataclass(frozen=True)
class Manifest:
    """The build's record of a library.

    Attributes:
        op: the op's name.
        namespace: of the op in torch.ops.
        library: the library's file name.
        sha256: SHA-256 of the library.
        source_digest: SHA-256 over the sources, as pyxla/library/source_digest.py computes it.
        compiler: the compilers and their versions.
        flags: all flags that shape the library's bytes.
        flags_digest: SHA-256 of `flags`.
        cuda_architectures: architectures of the CUDA code; empty without it.
        ffi_api_version: version of the XLA FFI headers that the library was compiled with.
        wrapped: the library or headers that the op wraps, or None.
        nixpkgs: version and revision of the nixpkgs that built the library, or None outside Nix.
        format: of the manifest.
        op_table: version of the library's op table; None in the first format, as the next two are.
        headers, recipe: versions of pyxla's headers and of its CMake recipe, with which the library was built.
    """

    op: str
    namespace: str
    library: str
    sha256: str
    source_digest: str
    compiler: str
    flags: str
    flags_digest: str
    cuda_architectures: tuple[str, ...]
    ffi_api_version: tuple[int, ...]
    wrapped: Wrapped | None
    nixpkgs: str | None
    format: int
    op_table: int | None
    headers: int | None
    recipe: int | None


def manifest_path(library: Path) -> Path:
    """The path of a library's manifest, which need not exist."""
    return library.with_suffix(".json")


def read_manifest(library: Path) -> Manifest | None:
    """The manifest next to a library, or None if there is none.

    Raises:
        LibraryError: it cannot be read, is not whole JSON, or lacks a field.
        VersionError: this pyxla does not load its format, or the version of op table that it names.
    """
    path, op, hint = manifest_path(library), op_of(library), f"{rebuild(library)} --clean"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LibraryError(mismatch(op, "manifest", "a readable file", error), hint) from error
    except (ValueError, RecursionError) as error:
        raise LibraryError(mismatch(op, "manifest", "whole JSON", f"{error} in {path}"), hint) from error
    values = values if isinstance(values, dict) else {}
    if "format" not in values:
        values = _FIRST_FORMAT | values
    if _is_valid("format", values["format"]):
        check_version("manifest", "format", values["format"], MANIFESTS, path, op)
    absent = _FIRST_FORMAT if values["format"] == 1 else {}
    found = {}
    for name in (field.name for field in fields(Manifest)):
        value = values.get(name)
        if not _is_valid(name, value) and (name, value) not in absent.items():
            raise LibraryError(
                mismatch(op, "manifest", f"{name} as the build writes it", f"{value!r} in {path}"),
                hint,
            )
        found[name] = tuple(value) if name in _LISTS else Wrapped(**value) if isinstance(value, dict) else value
    if found["op_table"] is not None:
        check_version("op table", "version", found["op_table"], OP_TABLES, library, op)
    return Manifest(**found)


def _is_valid(name: str, value: object) -> bool:
    """Whether the value of a field has the type that the build writes."""
    if name == _WRAPPED:
        return _is_wrapped(value)
    if name in _LISTS:
        return isinstance(value, list) and all(isinstance(entry, _LISTS[name]) for entry in value)
    if name in _NUMBERS:
        return type(value) is int  # True is no number
    return isinstance(value, str) or (value is None and name == _NIXPKGS)


def _is_wrapped(value: object) -> bool:
    """Whether the value has the form in which the build writes `wrapped`; null if the op wraps nothing."""
    if not isinstance(value, dict):
        return value is None
    optional = ("library", "sha256")
    return set(value) == {field.name for field in fields(Wrapped)} and all(
        isinstance(entry, str) or (entry is None and name in optional) for name, entry in value.items()
    )


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(library: Path, manifest: Manifest) -> None:
    """Raises LibraryError unless the library is, byte for byte, the one that the manifest was written for."""
    got = file_digest(library)
    if got != manifest.sha256:
        raise LibraryError(
            mismatch(
                op_of(library),
                "library",
                f"SHA-256 {manifest.sha256[:12]} ({manifest_path(library).name})",
                f"{got[:12]} in {library}",
            ),
            f"{rebuild(library)} --clean, or install library and manifest anew",
        )


def wrapped_path(library: Path, manifest: Manifest) -> Path | None:
    """The path of the library that an op's library wraps, which need not exist; None if it wraps none."""
    if manifest.wrapped is None or manifest.wrapped.library is None:
        return None
    return library.parent / f"{manifest.op}.wrapped" / manifest.wrapped.library


def check_wrapped(library: Path, manifest: Manifest) -> None:
    """Raises LibraryError unless the wrapped library is, byte for byte, the one that the op was built with."""
    path = wrapped_path(library, manifest)
    if path is None:
        return
    wrapped, hint = manifest.wrapped, f"{rebuild(library)} --clean, or install both libraries anew"
    expected = f"{wrapped.library} of {wrapped.name} {wrapped.version}"
    if not path.is_file():
        raise LibraryError(mismatch(op_of(library), "wrapped library", expected, f"none at {path}"), hint)
    got = file_digest(path)
    if got != wrapped.sha256:
        raise LibraryError(
            mismatch(
                op_of(library),
                "wrapped library",
                f"{expected}, SHA-256 {wrapped.sha256[:12]}",
                f"{got[:12]} in {path}",
            ),
            hint,
        )


def contradictions(manifest: Manifest, table: OpTable) -> dict[str, tuple[object, object]]:
    """The fields in which the manifest and the op table differ: {field: (in the table, in the manifest)}."""
    said = {name: (getattr(table, name), getattr(manifest, name)) for name in _IN_TABLE}
    if manifest.op_table is not None:
        said["op_table"] = (table.version, manifest.op_table)
    return {name: pair for name, pair in said.items() if pair[0] != pair[1]}


def check_table(library: Path, manifest: Manifest, table: OpTable) -> None:
    """Raises LibraryError if the manifest differs from the library's op table."""
    for name, (expected, got) in contradictions(manifest, table).items():
        raise LibraryError(
            mismatch(
                op_of(library),
                "manifest",
                f"{name} {expected!r} (the op table)",
                f"{got!r} in {manifest_path(library)}",
            ),
            f"{rebuild(library)} --clean",
        )
