"""The versions of op tables and manifests that this pyxla loads. docs/concept/versions.md says when each one grows.

Those of the headers and of the recipe count at build time only: pyxla/include/pyxla/version.h and
pyxla/cmake/CMakeLists.txt state them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyxla.errors import VersionError, mismatch
from pyxla.packages import package_of_path


@dataclass(frozen=True)
class Versions:
    """A range of versions, both ends included."""

    oldest: int
    newest: int

    def __contains__(self, version: int) -> bool:
        return self.oldest <= version <= self.newest

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"


OP_TABLES = Versions(3, 4)
MANIFESTS = Versions(1, 2)


def check_version(part: str, kind: str, got: int, versions: Versions, file: Path, op: str) -> None:
    """Raises VersionError unless this pyxla loads the version.

    Args:
        part, kind: "op table", "version" or "manifest", "format".
        got: the version of the file.
        versions: those that this pyxla loads.
        file: the library or the manifest.
        op: the op of the library.
    """
    if got not in versions:
        message = mismatch(op, part, f"{kind} {versions}", f"{got} in {file}")
        raise VersionError(message, _fix(op, file, is_too_new=got > versions.newest))


def _fix(op: str, file: Path, *, is_too_new: bool) -> str:
    """The command that makes library and pyxla fit: an installed one is updated, any other is built again."""
    package = package_of_path(file.parent)
    if package and not package.is_checkout:
        return f"pip install --upgrade {'pyxla' if is_too_new else package.distribution}"
    return f"devtool build {op} --clean" + ", or pip install --upgrade pyxla" * is_too_new
