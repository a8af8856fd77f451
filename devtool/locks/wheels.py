"""The locks in the form for Nix: the wheel of every locked package for each system and Python, and its hash."""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from devtool.errors import DevtoolError
from devtool.locks.lists import PYTHONS

# System -> the minor version of the first glibc 2 that supports it.
SYSTEMS = {"x86_64-linux": 5, "aarch64-linux": 17}
# Not every package has wheels for the other system: there is no torch-xla for it.
_COMPLETE = "x86_64-linux"
# The newest glibc that a wheel may require, and the names of older manylinux standards.
_GLIBC = 35
_ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True)
class Pin:
    """One package of a lock; `hashes` are those of all its files, in hexadecimal."""

    name: str
    version: str
    marker: Marker | None
    hashes: frozenset[str]


def read_pins(lock: str) -> list[Pin]:
    """The packages of a lock as pip reads it.

    Raises:
        DevtoolError: a package is named by an address instead of a version.
    """
    pins = []
    for line in lock.replace("\\\n", "").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        text, *hashes = line.split("--hash=sha256:")
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # a folder, or -e and a folder
            requirement = None
        if requirement is None or len(requirement.specifier) != 1:
            raise DevtoolError(
                f"lock: {requirement.name if requirement else text.strip()}: expected a version, got {text.strip()}",
                "name a version of it in requirements/*.in, not an address or a folder, which has no hash",
            )
        (version,) = (specifier.version for specifier in requirement.specifier)
        name, hashes = canonicalize_name(requirement.name), frozenset(text.strip() for text in hashes)
        pins.append(Pin(name, version, requirement.marker, hashes))
    return pins


def read_files(pylocks: Iterable[str]) -> dict[tuple[str, str], dict[str, str]]:
    """The wheels in texts of pylock.toml (PEP 751): (package, version) -> {file name: hash in hexadecimal}."""
    files: dict[tuple[str, str], dict[str, str]] = {}
    for package in (package for pylock in pylocks for package in tomllib.loads(pylock).get("packages", ())):
        wheels = files.setdefault((package["name"], package["version"]), {})
        for wheel in package.get("wheels", ()):
            # The name is left out if the address ends with it.
            place = wheel.get("path") or unquote(urlsplit(wheel.get("url", "")).path)
            wheels[wheel.get("name") or PurePosixPath(place).name] = wheel["hashes"]["sha256"]
    return files


def nix_view(locks: Mapping[str, str], pylocks: Iterable[str]) -> dict:
    """The content of nix/wheels.json.

    Args:
        locks: set -> its lock as pip reads it.
        pylocks: the same versions with their files. Only files whose hash is in the lock count, so that both views name
            the same files even if a maintainer has uploaded more since.

    Raises:
        DevtoolError: a package has no wheel for a system that needs it.
    """
    files, hashes = read_files(pylocks), {}
    pins = {name: read_pins(lock) for name, lock in locks.items()}

    def choose(name: str, wanted: list[Pin], system: str, python: str) -> dict[str, str]:
        ranks, environment = _ranks(system, python), marker_environment(system, python)
        chosen = {}
        for pin in wanted:
            if pin.marker and not pin.marker.evaluate(environment):
                continue
            locked = {file: sha for file, sha in files.get((pin.name, pin.version), {}).items() if sha in pin.hashes}
            if best := best_wheel(locked, ranks):
                chosen[pin.name] = best
                hashes[best] = "sha256-" + base64.b64encode(bytes.fromhex(locked[best])).decode()
            elif system == _COMPLETE:
                package, where = f"{pin.name} {pin.version}", f"{python} on {system}"
                raise DevtoolError(
                    f"lock: {name}: expected a wheel of {package} for Python {where}, got none",
                    f"name another version of {pin.name} in requirements/*.in, with the reason",
                )
        return chosen

    environments = {
        system: {
            python: {name: choose(name, wanted, system, python) for name, wanted in pins.items()} for python in PYTHONS
        }
        for system in SYSTEMS
    }
    return {"environments": environments, "hashes": hashes}


def best_wheel(files: Iterable[str], ranks: Mapping[Tag, int]) -> str | None:
    """The file that pip would take: the one with the best tag, among these the last build; None if none fits."""
    found = []
    for file in files:
        _, _, build, tags = parse_wheel_filename(file)
        if fitting := [ranks[tag] for tag in tags if tag in ranks]:
            found.append((-min(fitting), build, file))
    return max(found)[2] if found else None


def _ranks(system: str, python: str) -> dict[Tag, int]:
    """The tags that CPython accepts on the system -> their rank; the best is 0."""
    version = tuple(map(int, python.split(".")))
    interpreter = f"cp{version[0]}{version[1]}"
    platforms = _platforms(system)
    tags = [
        *cpython_tags(version, [interpreter], platforms),
        *compatible_tags(version, interpreter, platforms),
    ]
    return {tag: rank for rank, tag in enumerate(tags)}


def _platforms(system: str) -> list[str]:
    machine = _machine(system)
    names = []
    for minor in range(_GLIBC, SYSTEMS[system] - 1, -1):
        names.append(f"manylinux_2_{minor}_{machine}")
        if minor in _ALIASES:
            names.append(f"{_ALIASES[minor]}_{machine}")
    return names


def marker_environment(system: str, python: str) -> dict[str, str]:
    """The environment for the markers of a lock: that of the given CPython, not of the running one."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": _machine(system),
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def _machine(system: str) -> str:
    return system.removesuffix("-linux")
