"""The file of an exported function: a zip archive with stored members, read without pickle, whole or not at all.

    manifest.json     what the function is: inputs, outputs, weights, custom calls, versions, digests of the members
    module.stablehlo  its StableHLO, as a portable artifact: newer versions of StableHLO read it too
    weights/<n>       the bytes of a weight, row-major and little-endian

The archive's comment, its last bytes, is a mark with the format's version and the SHA-256 of all bytes before it. It
reveals that a file was cut short or altered, also in bytes that a zip reader ignores.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pyxla.artifact.manifest import FORMAT, Manifest, read_manifest
from pyxla.errors import ArtifactError, mismatch

MANIFEST, MODULE = "manifest.json", "module.stablehlo"
_MARK = re.compile(rb"pyxla-artifact ([1-9][0-9]{0,8}) sha256 ([0-9a-f]{64})\Z")
_MARK_BYTES = len(f"pyxla-artifact {FORMAT} sha256 ") + 64
_CHUNK = 1 << 20
_OTHER = "one that is compressed or cut short"
_AGAIN = "copy it again from where it was made, or export it again"


def write_artifact(path: Path, manifest: Manifest, members: Mapping[str, Callable[[], Any]]) -> None:
    """Writes the file, whole or not at all.

    Args:
        path: the file to write; an existing one is replaced.
        manifest: its `members` are filled in here.
        members: name -> function that returns the bytes, so that only one weight at a time is held twice.

    Raises:
        ArtifactError: the system refuses to write it.
    """
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            _write(file, manifest, members)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise ArtifactError(
            mismatch("export", "path", "a file that can be written", error), "another folder, or make this one writable"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write(file: BinaryIO, manifest: Manifest, members: Mapping[str, Callable[[], Any]]) -> None:
    digests = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, make in members.items():
            content = memoryview(make()).cast("B")
            _add(archive, name, content)
            digests[name] = hashlib.sha256(content).hexdigest()
        values = {"format": FORMAT, **asdict(manifest), "members": digests}
        _add(archive, MANIFEST, json.dumps(values, indent=1).encode())
        # The comment's length comes before it, and so is part of the digested bytes.
        archive.comment = bytes(_MARK_BYTES)
    file.flush()
    size = file.seek(0, os.SEEK_END) - _MARK_BYTES
    digest = _digest(file, size)
    file.seek(size)
    file.write(f"pyxla-artifact {FORMAT} sha256 {digest}".encode())


def _add(archive: zipfile.ZipFile, name: str, content: bytes | memoryview) -> None:
    # One date for all: the same function gives the same bytes.
    with archive.open(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), "w", force_zip64=True) as member:
        member.write(content)


def _digest(file: BinaryIO, size: int) -> str:
    """SHA-256 of the first `size` bytes."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (chunk := file.read(min(_CHUNK, size))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()


@dataclass(frozen=True)
class ArtifactFile:
    """A file whose mark, digest and manifest are right.

    Attributes:
        path: the file.
        manifest: its manifest.
    """

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path) -> ArtifactFile:
        """Checks the file and reads its manifest.

        Raises:
            ArtifactError: it cannot be read, is not an artifact, has another version, or was cut short or altered.
        """
        try:
            with path.open("rb") as file:
                _check_mark(path, file)
        except OSError as error:
            raise ArtifactError(
                mismatch("artifact", "file", "one that can be read", error), "check the path"
            ) from error
        try:
            values = json.loads(_member(path, MANIFEST))
        except (ValueError, RecursionError) as error:
            raise ArtifactError(mismatch("artifact", MANIFEST, "whole JSON", f"{error} in {path}"), _AGAIN) from error
        return cls(path, read_manifest(values, str(path)))

    def member(self, name: str) -> bytearray:
        """The bytes of a member.

        Raises:
            ArtifactError: there is no such member, or its SHA-256 differs from the manifest's.
        """
        content = _member(self.path, name)
        digest = hashlib.sha256(content).hexdigest()
        expected = self.manifest.members.get(name)
        if digest != expected:
            raise ArtifactError(
                mismatch("artifact", name, f"SHA-256 {expected} ({MANIFEST})", f"{digest} in {self.path}"), _AGAIN
            )
        return content


def _check_mark(path: Path, file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 128))
    mark = _MARK.search(file.read())
    if mark is None:
        file.seek(0)
        begins_as_zip = file.read(4) == b"PK\x03\x04"
        got = f"{size} bytes without one" + (", a zip archive cut short or another one" if begins_as_zip else "")
        raise ArtifactError(
            mismatch("artifact", "file", "the mark of an artifact at its end", f"{got} in {path}"), _AGAIN
        )
    version = int(mark[1])
    if version != FORMAT:
        newer = version > FORMAT
        raise ArtifactError(
            mismatch("artifact", "format version", FORMAT, f"{version} in {path}"),
            "load it with the pyxla that wrote it, or a newer one" if newer else "export the function again",
        )
    digest = _digest(file, size - len(mark[0]))
    if digest != mark[2].decode():
        got = f"{digest[:12]} in {path}"
        raise ArtifactError(mismatch("artifact", "file", f"SHA-256 {mark[2].decode()[:12]} (its mark)", got), _AGAIN)


def _member(path: Path, name: str) -> bytearray:
    # The digest was right, so an error here was written by something else; a zip reader raises many types for that.
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(name)
            stored = info.compress_type == zipfile.ZIP_STORED and info.file_size == info.compress_size
            content = bytearray(info.file_size) if stored and info.file_size <= path.stat().st_size else None
            if content is not None:
                with archive.open(info) as member:
                    count = member.readinto(content)
    except (zipfile.BadZipFile, KeyError, OSError, EOFError, ValueError, OverflowError, RuntimeError) as error:
        raise ArtifactError(
            mismatch("artifact", name, "a stored member of the archive", f"{error} in {path}"), _AGAIN
        ) from error
    if content is None or count != len(content):
        raise ArtifactError(mismatch("artifact", name, "a stored member of the archive", f"{_OTHER} in {path}"), _AGAIN)
    return content
