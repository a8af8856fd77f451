"""Checks for `devtool doctor` that this Python and its wheels are the ones that pyxla is locked to."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PYTHONS = ((3, 11), (3, 12))
_SHOWN = 3


class Problem(Exception):
    """What is wrong, and the fix."""


def python(version: tuple[int, int] = sys.version_info[:2]) -> str:
    """Checks that there are wheels for this version of Python, and its shared library."""
    text, library = dotted(version), f"libpython{dotted(version)}.so.1.0"
    hint = "PYXLA_PYTHON=<python> bin/devtool, after apt-get install python3-venv libpython3.11 (Debian 12)"
    if version not in _PYTHONS:
        raise Problem(f"expected Python {' or '.join(map(dotted, _PYTHONS))}, got {text}", hint)
    try:
        ctypes.CDLL(library)
    except OSError as error:
        raise Problem(f"expected {library}, which torch_xla needs, got {error}", hint) from None
    return f"{text} with {library}"


def wheels(requirements: Path) -> str:
    """Compares the installed packages with the locks in this folder."""
    chosen = wheel_set()
    pins = read_locks(requirements, chosen)
    installed = {pin: version_of(pin.name) for pin in pins}
    wrong = [(pin, got) for pin, got in installed.items() if got is None or not _same(got, pin.version)]
    if not wrong:
        return f"{len(pins)} as locked ({chosen}, dev)"
    shown = [f"expected {pin.name} {pin.version}, got {got or 'none'}" for pin, got in wrong[:_SHOWN]]
    rest = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    raise Problem("; ".join([*shown, *rest]), install_command(chosen))


def wheel_set() -> str:
    """The locked set that is installed: the name of one of requirements/*.txt."""
    stamp = Path(sys.prefix, "stamp")  # bin/devtool names the set in its first line
    if stamp.is_file():
        return stamp.read_text().partition("\n")[0].rpartition(" ")[2]
    cuda = version_of("cupy-cuda13x") is not None
    if version_of("vllm"):
        name, other = "vllm-cuda13" if cuda else "vllm", "2.9"
    else:
        name, other = "cuda13" if cuda else "cpu", "2.8"
    return f"{name}-torch{other}" if (version_of("torch") or "").startswith(f"{other}.") else name


def version_of(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_locks(requirements: Path, chosen: str) -> list[Any]:
    """The packages that the locks `chosen` and dev name for this Python."""
    from devtool.locks.wheels import read_pins

    pins = [pin for name in (chosen, "dev") for pin in read_pins((requirements / f"{name}.txt").read_text())]
    return [pin for pin in pins if not pin.marker or pin.marker.evaluate()]


def _same(installed: str, locked: str) -> bool:
    from packaging.specifiers import SpecifierSet

    # A build may add +name to the version.
    return SpecifierSet(f"=={locked}").contains(installed, prereleases=True)


def install_command(chosen: str) -> str:
    """The command that installs the locked packages; bin/devtool notices a changed lock, but not a changed .venv."""
    if os.environ.get("PYXLA_NIX_SHELL") == "1":
        return "leave this shell, then bin/devtool nix develop"
    if chosen.startswith("vllm"):
        name, _, release = chosen.partition("-torch")
        variables = f"PYXLA_SET={name}" + (f" PYXLA_TORCH={release}" if release else "")
        return f"echo -n > .venv/stamp; {variables} bin/devtool --help"
    locks = f"-r requirements/{chosen}.txt -r requirements/dev.txt"
    return f".venv/bin/python -m pip install --require-hashes --no-deps {locks}"


def dotted(version: Sequence[int]) -> str:
    """3.11 for (3, 11)."""
    return ".".join(map(str, version))
