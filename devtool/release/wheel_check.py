"""Installs a wheel of kernels into a clean environment and runs the repository's tests there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from devtool import project
from devtool.device import pick_device
from devtool.errors import DevtoolError
from devtool.processes import how_it_ended, run_through

# Fails unless Python imports the package from the environment that it runs in.
_WHERE = """
import importlib.util, pathlib, sys
(folder,) = importlib.util.find_spec(sys.argv[1]).submodule_search_locations
sys.exit(0 if pathlib.Path(folder).is_relative_to(sys.prefix) else folder)
"""


def check_wheel(wheel: Path) -> None:
    """Installs the wheel and runs the tests of its ops, apart from slow ones, outside of the repository.

    The environment has the packages of devtool's own, so nothing is fetched; pip compares their versions with those
    that the wheel asks for. It has neither the repository nor a preloaded library.

    Raises:
        DevtoolError: pip refuses the wheel, or a test fails.
    """
    repository = project.repository()
    device = pick_device("wheel", "auto")
    with tempfile.TemporaryDirectory(prefix="devtool-wheel-check-") as scratch:
        python = _environment(Path(scratch, "environment"))
        environment = _without_repository()
        _install(python, wheel, environment)
        tests = Path(scratch, "tests")
        _copy_tests(tests)
        found = subprocess.run(
            [python, "-P", "-c", _WHERE, repository.package], cwd=tests, env=environment, capture_output=True, text=True
        )
        if found.returncode:
            message = f"wheel: --check: expected {repository.package} of the wheel, got {found.stderr.strip()}"
            raise DevtoolError(message, f"pip uninstall {repository.project['name']}")
        command = [python, "-P", "-m", "pytest", "-p", "pyxla.pytest_plugin", "--device", device, "-m", "not slow", "."]
        status = run_through(list(map(str, command)), tests, environment, sys.stderr)
        if status:
            message = f"wheel: --check: expected the tests of {wheel.name} to pass, pytest {how_it_ended(status)}"
            raise DevtoolError(message, "devtool test says whether they pass in the repository; wheels have no sources")


def _environment(folder: Path) -> Path:
    """Makes a virtual environment that finds this one's packages; returns its Python."""
    venv.create(folder, symlinks=True)
    stdlib = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    stdlib |= {path / "lib-dynload" for path in stdlib}
    others = [path for path in sys.path if Path(path).is_dir() and Path(path) not in stdlib]
    links = [path for path in others if Path(path).resolve() not in _of_repository()]
    # A line that begins with `import` is run: packages of these folders may be editable installs themselves.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in links]
    (next(folder.glob("lib/python3*/site-packages")) / "devtool.pth").write_text("".join(lines))
    return folder / "bin/python"


def _of_repository() -> set[Path]:
    return {project.root(), project.root() / "build/site", Path.cwd().resolve()}


def _without_repository() -> dict[str, str]:
    dropped = ("PYTHONPATH", "LD_PRELOAD")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _install(python: Path, wheel: Path, environment: dict[str, str]) -> None:
    options = ("--quiet", "--no-index", "--disable-pip-version-check", "--no-warn-script-location")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")] or [done.stderr.strip()]
        message = f"wheel: --check: expected pip to install {wheel.name}, got {lines[0].removeprefix('ERROR: ')}"
        raise DevtoolError(message, "install what it asks for, or correct `dependencies` in pyproject.toml")


def _copy_tests(folder: Path) -> None:
    """Copies test files and pytest's settings; all else that a test needs is in the wheel, or it fails."""
    folder.mkdir()
    shutil.copyfile(project.root() / "pyproject.toml", folder / "pyproject.toml")
    for pattern in ("conftest.py", "test_*.py"):
        for path in project.kernels().rglob(pattern):
            copy = folder / path.relative_to(project.kernels())
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
