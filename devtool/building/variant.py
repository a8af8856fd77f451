"""The same ops from another revision, or with other options of the compilers: in folders of their own."""

from __future__ import annotations

import hashlib
import io
import shlex
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from devtool import project
from devtool.errors import MISUSED, DevtoolError


@dataclass(frozen=True)
class Variant:
    """Where the sources are and where what is built of them goes; it is kept for the next time.

    Attributes:
        name: as the user named it: "HEAD~1", "-DkWarps=4".
        folder: of all that is built.
        kernels: the ops.
        recipe: the folder of the CMake recipe, with the headers beside it.
        flags: more options for both compilers.
        cuda_flags: more options for nvcc alone.
    """

    name: str
    folder: Path
    kernels: Path
    recipe: Path
    flags: str = ""
    cuda_flags: str = ""


def variant_of(where: str, name: str) -> Variant:
    """A git revision, or options of the compilers, which begin with "-".

    Args:
        where: the option, for errors.
        name: what the user gave.

    Raises:
        DevtoolError: no such revision, or no git repository.
    """
    if name.startswith("-"):
        key = hashlib.sha256(name.encode()).hexdigest()[:12]
        recipe = project.pyxla_folder() / "cmake"
        return Variant(name, _folder() / f"options-{key}", project.kernels(), recipe, _checked(where, name))
    revision = _git(where, name, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
    folder = _folder() / revision[:12]
    source = folder / "source"
    if not source.is_dir():
        _extract(_git(where, name, "archive", revision, "--", *_parts()), source)
    own = source / "pyxla/cmake"
    return Variant(name, folder, source / "kernels", own if own.is_dir() else project.pyxla_folder() / "cmake")


def with_lines() -> Variant:
    """The repository's ops with the lines of their source in the machine code, which profilers read.

    They are no part of the usual build, as they name the folder of the sources: the same sources would give other bytes
    elsewhere.
    """
    recipe = project.pyxla_folder() / "cmake"
    return Variant("-lineinfo", project.root() / "build/profile", project.kernels(), recipe, cuda_flags="-lineinfo")


def require_ops(where: str, variant: Variant, ops: list[str]) -> None:
    """Raises DevtoolError unless the variant has these folders."""
    missing = [op for op in ops if not (variant.kernels / op).is_dir()]
    if missing:
        message = f"{where}: expected kernels/{missing[0]} in {variant.name}, got none"
        raise DevtoolError(message, f"git log -- kernels/{missing[0]} shows when it came")


def _folder() -> Path:
    return project.root() / "build/against"


def _parts() -> list[str]:
    """What a build reads: the ops, and in pyxla's own checkout also its headers and recipe."""
    parts = ["kernels", *(["pyxla"] if project.pyxla_folder().parent == project.root() else [])]
    return [part for part in parts if (project.root() / part).is_dir()]


def _checked(where: str, flags: str) -> str:
    try:
        shlex.split(flags)
    except ValueError as error:
        message = f"{where}: expected options of the compilers, got {flags!r}: {error}"
        raise DevtoolError(message, "--against '-DkWarps=4 -O2'", MISUSED) from error
    return flags


def _git(where: str, name: str, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(project.root()), *arguments], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise DevtoolError(f"{where}: expected git, got none on PATH", "apt-get install git") from error
    if done.returncode:
        message = f"{where}: expected a revision of {project.root()}, got {name}"
        raise DevtoolError(message, "git log --oneline shows them; options of the compilers begin with -", MISUSED)
    return done.stdout


def _extract(archive: bytes, folder: Path) -> None:
    """All or nothing: another call may find the folder at any time."""
    new = folder.with_suffix(".new")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(new, filter="data")
    new.rename(folder)
