"""A small project to set up: the real bin/devtool, setup_env.py and uv, and locks of tiny wheels."""

import contextlib
import ctypes
import ensurepip
import hashlib
import importlib.metadata
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from devtool.processes import locate

PROJECT = Path(__file__).resolve().parents[1]
# Nothing listens on port 9 (discard).
NOBODY = "http://127.0.0.1:9/simple"

# A build backend of ten lines, so that the small tree needs no setuptools.
BACKEND = """
import pathlib, zipfile
def get_requires_for_build_editable(config_settings=None):
    return []
def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name, info = "pyxla-0.1.0-py3-none-any.whl", "pyxla-0.1.0.dist-info"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w") as wheel:
        wheel.writestr("pyxla.pth", str(pathlib.Path.cwd()))
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: pyxla\\nVersion: 0.1.0\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/RECORD", "")
    return name
"""
# Of a package that is built from its source.
SDIST_BACKEND = """
import os, pathlib, zipfile
version = "{version}+" + os.environ["{variable}"]
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    wheel_name, info = "{name}-" + version + "-py3-none-any.whl", "{name}-" + version + ".dist-info"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, wheel_name), "w") as wheel:
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: " + version + "\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/RECORD", "")
    return wheel_name
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
# Runs in place of devtool, and prints what it sees.
DEVTOOL = """
import importlib.metadata, json, os, sys
names = {d.name: d.version for d in importlib.metadata.distributions()}
print(json.dumps({"prefix": sys.prefix, "arguments": sys.argv[1:], "installed": names}))
"""


def write_wheel(
    folder: Path, name: str, version: str, size: int = 10, *, tag: str = "py3-none-any", needs: Sequence[str] = ()
) -> str:
    """Writes a wheel; returns its line in a lock."""
    wheel, info = folder / f"{name}-{version}-{tag}.whl", f"{name}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in needs)
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", "#" * size)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return lock_line(name, version, wheel)


def write_sdist(folder: Path, name: str, version: str, variable: str) -> str:
    """Writes a source distribution, whose build adds a variable's value to the version; returns its line in a lock."""
    path, root = folder / f"{name}-{version}.tar.gz", f"{name}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    backend = SDIST_BACKEND.format(name=name, version=version, variable=variable)
    with tarfile.open(path, "w:gz") as archive:
        for file, text in (("PKG-INFO", metadata), ("pyproject.toml", PYPROJECT), ("backend.py", backend)):
            entry = tarfile.TarInfo(f"{root}/{file}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return lock_line(name, version, path)


def lock_line(name: str, version: str, wheel: Path) -> str:
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n    # via test\n"


def write_uv_wheel(folder: Path) -> str:
    """Writes this environment's uv as a wheel; returns its line in a lock."""
    version = importlib.metadata.version("uv")
    write_wheel(folder, "uv", version, tag="py3-none-linux_x86_64")
    wheel = next(folder.glob("uv-*.whl"))
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.write(locate("uv"), f"uv-{version}.data/scripts/uv")
    return lock_line("uv", version, wheel)


class Tree:
    """A small project: bin/devtool, setup_env.py, locks of two tiny wheels, of uv and of the pip that Python ships."""

    def __init__(self, root: Path):
        self.root, self.wheels = root, root / "wheels"
        for name in ("bin/devtool", *(f"devtool/setup_{name}.py" for name in ("children", "env", "errors", "uv"))):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, root / name)
        (root / "devtool/__main__.py").write_text(DEVTOOL)
        (root / "devtool/__init__.py").touch()
        (root / "backend.py").write_text(BACKEND)
        (root / "pyproject.toml").write_text(PYPROJECT)
        (root / "setup.py").touch()
        (root / "requirements").mkdir()
        folder = sysconfig.get_config_var("WHEEL_PKG_DIR") or Path(ensurepip.__file__).parent / "_bundled"
        pip = next(Path(folder).glob("pip-*.whl"))
        self.wheels.mkdir()
        shutil.copy(pip, self.wheels)
        self.tools = {"pip": lock_line("pip", pip.name.split("-")[1], pip), "uv": write_uv_wheel(self.wheels)}
        self.lock("dev", *self.tools.values(), write_wheel(self.wheels, "devthing", "1.0"))
        self.lock("cpu", write_wheel(self.wheels, "tiny", "1.0"))

    def lock(self, name: str, *lines: str) -> None:
        (self.root / f"requirements/{name}.txt").write_text("".join(lines))

    def environment(self, **changes: str) -> dict[str, str]:
        """A user's environment, with PYTHONPATH and PIP_TARGET, which must be ignored."""
        base = {
            "PYXLA_SET": "cpu",
            "PYXLA_PYTHON": sys.executable,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": self.wheels.as_uri(),
            "PIP_NO_COMPILE": "1",
            "PIP_TARGET": "/nonexistent",
            "PYTHONPATH": "/nonexistent",
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
        }
        return {name: value for name, value in (base | changes).items() if value}

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen:
        return subprocess.Popen(
            [self.root / "bin/devtool", *arguments], cwd="/", env=self.environment(**changes), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def devtool(self, *arguments: str, **changes: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **changes)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def works(self, *arguments: str, **changes: str) -> tuple[dict, str]:
        status, output, errors = self.devtool(*arguments, **changes)
        assert status == 0, errors
        return json.loads(output), errors

    def fails(self, **changes: str) -> str:
        status, output, errors = self.devtool(**changes)
        assert (status, output) == (1, ""), (output, errors)
        assert "Traceback" not in errors
        return errors


def read_until(process: subprocess.Popen, text: str) -> str:
    """Everything up to and including the line that contains the text."""
    lines = ""
    for line in process.stderr:
        lines += line
        if text in line:
            return lines
    pytest.fail(f"expected a line with {text!r}, got: {lines}")


def kill_alone(process: subprocess.Popen, tree: Tree) -> None:
    """Kills one process; its child, pip or uv, must end by itself."""
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    for _ in range(100):
        # Absent, or a zombie whose command line is empty.
        left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tree.root).encode() in read_or_empty(p)]
        if not left:
            process.communicate()
            return
        time.sleep(0.01)
    pytest.fail(f"still there a second later: {[read_or_empty(p) for p in left]}")


def read_or_empty(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


@contextlib.contextmanager
def mounted(folder: Path, options: str, flags: int = 0):
    """A small file system, because root may write everywhere else and no disk here is full."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir(exist_ok=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", flags, options.encode()):
        pytest.skip(f"needs the right to mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        yield libc
    finally:
        libc.umount2(str(folder).encode(), 2)  # 2: MNT_DETACH
