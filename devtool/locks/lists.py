"""The lists to lock, requirements/*.in, and what pyproject.toml says of their locks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Any

from devtool.errors import DevtoolError
from devtool.repository import Repository

# Those of pyxla.
PYTHONS = ("3.11", "3.12")
_KEYS = {"leave-out", "nix", "without-nix"}
_EXAMPLE = '[tool.devtool.lock]\nleave-out.cuda = ["nvidia-nccl-cu12"]'


@dataclass(frozen=True)
class Settings:
    """The table tool.devtool.lock of pyproject.toml.

    Attributes:
        left_out: set -> packages that its lock leaves out.
        nix: the file of wheels for Nix, from the root, or None.
        without_nix: sets that this file leaves out.
    """

    left_out: Mapping[str, Sequence[str]]
    nix: str | None
    without_nix: Sequence[str]


def read_settings(root: Path) -> Settings:
    """The settings of a repository.

    Raises:
        DevtoolError: the table has another key, or a value of another kind.
    """
    found: Any = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    for key in ("tool", "devtool", "lock"):
        found = found.get(key, {}) if isinstance(found, dict) else found
    if not isinstance(found, dict) or (set(found) - _KEYS):
        message = f"lock: tool.devtool.lock: expected a table with leave-out, nix and without-nix, got {found}"
        raise DevtoolError(message, _EXAMPLE)
    left_out, nix, without_nix = found.get("leave-out", {}), found.get("nix"), found.get("without-nix", [])
    lists = left_out.values() if isinstance(left_out, dict) else [None]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
        message = f"lock: tool.devtool.lock.leave-out: expected a list of packages for each set, got {left_out}"
        raise DevtoolError(message, _EXAMPLE)
    if nix is not None and not isinstance(nix, str):
        message = f"lock: tool.devtool.lock.nix: expected a path from the root, got {nix!r}"
        raise DevtoolError(message, 'nix = "nix/wheels.json"')
    if not isinstance(without_nix, list) or not all(isinstance(name, str) for name in without_nix):
        message = f"lock: tool.devtool.lock.without-nix: expected a list of sets, got {without_nix!r}"
        raise DevtoolError(message, 'without-nix = ["vllm"]')
    return Settings(left_out, nix, without_nix)


def oldest_python(repository: Repository) -> str:
    """The oldest Python of pyxla that the repository allows: its locks are for this one and later ones.

    Raises:
        DevtoolError: it allows none.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    asked = repository.project.get("requires-python", "")
    try:
        allowed = [python for python in PYTHONS if SpecifierSet(asked).contains(f"{python}.99")]
    except InvalidSpecifier:
        allowed = []
    if not allowed:
        message = f"lock: requires-python: expected one that allows Python {' or '.join(PYTHONS)}, got {asked}"
        raise DevtoolError(message, f'requires-python = ">={PYTHONS[0]}" in pyproject.toml')
    return allowed[0]


def read_sets(folder: Path) -> list[str]:
    """The names of the lists that get a lock, each after those whose locks it names by `-c`.

    A list that others include by `-r` is a part of them and gets none, unless one names its lock.

    Args:
        folder: requirements/ of the repository.

    Raises:
        DevtoolError: there is no list, or two wait for each other's locks.
    """
    options = {path.stem: _options(path) for path in sorted(folder.glob("*.in"))}
    if not options:
        hint = f"write what to lock, such as: mkdir -p {folder} && echo numpy > {folder / 'dev.in'}"
        raise DevtoolError(f"lock: requirements: expected lists, *.in, in {folder}, got none", hint)
    after = {name: _locks(name, options) & options.keys() - {name} for name in options}
    named = set().union(*after.values())
    included = {PurePosixPath(file).stem for pairs in options.values() for kind, file in pairs if kind == "r"}
    try:
        order = list(TopologicalSorter(after).static_order())
    except CycleError as error:
        got = " -> ".join(f"{name}.in" for name in error.args[1])
        message = f"lock: requirements: expected lists of which one needs no lock of another, got {got}"
        raise DevtoolError(message, "remove one of their lines -c") from error
    return [name for name in order if name in named or name not in included]


def _options(path: Path) -> list[tuple[str, str]]:
    """The lines `-r FILE` and `-c FILE` of a list: [("r", "base.in")]."""
    names = {"r": "r", "c": "c", "-requirement": "r", "-constraint": "c"}
    found = re.findall(r"^\s*-(r|c|-requirement|-constraint)(?:\s+|=)?(\S+)", path.read_text(), re.MULTILINE)
    return [(names[kind], file) for kind, file in found]


def _locks(name: str, options: Mapping[str, Sequence[tuple[str, str]]], seen: frozenset[str] = frozenset()) -> set[str]:
    """The sets whose locks a list names, itself or through the lists that it includes."""
    if name in seen:
        return set()
    found: set[str] = set()
    for kind, file in options.get(name, ()):
        path = PurePosixPath(file)
        if kind == "c" and path.suffix == ".txt":
            found.add(path.stem)
        if kind == "r" and path.suffix == ".in":
            found |= _locks(path.stem, options, seen | {name})
    return found
