"""Takes the libraries and their manifests out of a wheel or a release tarball, and nothing else."""

from __future__ import annotations

import contextlib
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import IO

from devtool.errors import DevtoolError

# Libraries, their manifests, and the release's own.
_WANTED = re.compile(r"lib[^/]+\.(so|json)|manifest\.json")
# The suffix of the folder next to lib<op>.so that contains the library that it wraps.
_WRAPPED = ".wrapped"
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError)


def is_archive(path: Path) -> bool:
    """Whether the file is a wheel or a tarball, by its name."""
    return path.name.endswith((".whl", ".tar.gz"))


def is_wrapped(path: PurePath) -> bool:
    """Whether the file is a library that an op's library wraps, not an op's library."""
    return path.parent.suffix == _WRAPPED


def unpack_libraries(archive: Path, into: Path) -> dict[str, Path]:
    """Unpacks lib<op>.so, lib<op>.json and manifest.json; returns each library's name in the archive and its file.

    Each folder of the archive becomes a numbered folder, so that every file stays inside `into`, whatever its name in
    the archive.

    Raises:
        DevtoolError: the archive is damaged, or an entry would leave the folder that it is unpacked in.
    """
    folders: dict[PurePosixPath, Path] = {}
    found: dict[str, Path] = {}
    try:
        with contextlib.closing(_entries(archive)) as entries:
            for name, open_file in entries:
                place = PurePosixPath(name)
                if place.is_absolute() or ".." in place.parts:
                    raise _refused(archive, "entries that stay in their folder", name)
                if not is_wrapped(place) and not _WANTED.fullmatch(place.name):
                    continue
                of_op = place.parent.parent if is_wrapped(place) else place.parent
                folder = folders.setdefault(of_op, into / str(len(folders)))
                if is_wrapped(place):
                    folder /= place.parent.name
                folder.mkdir(exist_ok=True, parents=True)
                if open_file is None or (folder / place.name).exists():
                    raise _refused(archive, "each library and manifest once, as a plain file", name)
                with open_file() as content, (folder / place.name).open("xb") as file:
                    shutil.copyfileobj(content, file)
                if place.suffix == ".so" and not is_wrapped(place):
                    found[name] = folder / place.name
    except _DAMAGED as error:
        raise _refused(archive, "a whole archive", f"{type(error).__name__}: {error}") from error
    return found


def _entries(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes]] | None]]:
    """Pairs of a name and a function that opens the file; None for an entry that is not a plain file."""
    if archive.name.endswith(".whl"):
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                yield info.filename, None if info.is_dir() else partial(wheel.open, info)
    else:
        with tarfile.open(archive, "r:gz") as tarball:
            for member in tarball:
                yield member.name, partial(tarball.extractfile, member) if member.isfile() else None
            # Read to the end of the stream, after the last member: only there does a damaged stream show.
            while tarball.fileobj.read(1 << 20):
                pass


def _refused(archive: Path, expected: str, got: str) -> DevtoolError:
    return DevtoolError(f"verify: PATH: expected {expected}, got {got} in {archive}", "download or build it again")
