"""A copy of the checkout in which the tests of devtool write ops, break them, build them and kill builds."""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Compiles in half a second, where the smallest real op takes six: for tests of the build, not of an op.
TINY = """#include "pyxla/ffi/op_table.h"
int answer();
int answer() { return 42; }
static XLA_FFI_Error* Run(XLA_FFI_CallFrame*) { return nullptr; }
PYXLA_OP_TABLE(NAME, PYXLA_HOST_HANDLER("xla_gpu_NAME", Run))
"""

HAS_NVCC = bool(shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin"))
needs_nvcc = pytest.mark.skipif(not HAS_NVCC, reason="needs nvcc")


class Tree:
    """A checkout with simple_add as its only op.

    Attributes:
        root: its root; `kernels` is the folder of the ops.
    """

    def __init__(self, root: Path):
        self.root = root
        self.kernels = root / "kernels"
        for name in ("devtool", "pyxla"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.kernels.mkdir()
        shutil.copy(ROOT / "kernels/__init__.py", self.kernels)
        families = [path.name for path in (ROOT / "kernels").glob("_[a-z]*")]  # part of every op's digest
        for name in ("simple_add", *families):
            shutil.copytree(ROOT / "kernels" / name, self.kernels / name)
        for name in ("pyproject.toml", ".clang-format"):
            shutil.copy(ROOT / name, root)
        site = root / "site"
        site.mkdir()
        for name, folder in (("devtool", "devtool"), ("pyxla", "pyxla"), ("pyxla_kernels", "kernels")):
            (site / name).symlink_to(root / folder)

    def environment(self, **changes: str) -> dict[str, str]:
        """A user's environment: nothing preloaded, no Nix, no CUDA code unless a test asks for it."""
        ours = (
            "LD_PRELOAD", "XLA_FLAGS", "PJRT_DEVICE", "ASAN_OPTIONS", "PYTHONMALLOC", "PYTEST_ADDOPTS",
            "PYXLA_NIXPKGS_BUILD",
        )  # fmt: skip
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        return kept | {"PYTHONPATH": str(self.root / "site"), "PYXLA_CUDA": "off", "LC_ALL": "C"} | changes

    def command(self, *arguments: str) -> list[str]:
        """The command line of devtool in this tree."""
        return [sys.executable, "-P", "-m", "devtool", *arguments]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        """Runs devtool and waits for its end."""
        return subprocess.run(
            self.command(*arguments), cwd=self.root, env=self.environment(**environment), capture_output=True, text=True
        )

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        """Starts devtool in a process group of its own, as a shell does."""
        return subprocess.Popen(
            self.command(*arguments), cwd=self.root, env=self.environment(**environment), process_group=0,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def tiny_op(self, name: str, source: str = TINY) -> Path:
        """Adds an op folder with one source file that compiles fast; returns the file. Replaces NAME by the name."""
        path = self.kernels / name / f"{name}_ffi.cc"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source.replace("NAME", name))
        return path

    def new_op(self, name: str, schema: str | None = None) -> Path:
        """Has devtool write an op; returns its folder."""
        result = self.run("new-op", name, *([schema] if schema else []))
        assert result.returncode == 0, result.stderr
        return self.kernels / name

    def library(self, op: str, folder: str = "lib") -> Path:
        """The path of an op's built library."""
        return self.root / "build" / folder / f"lib{op}.so"


def processes_in(folder: Path) -> list[str]:
    """The command lines of running processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text().replace("\0", " ")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


@contextlib.contextmanager
def tree_on_a_bad_disk(place: Path, what: str, *, free: int = 0) -> Iterator[Tree]:
    """A tree on its own disk: "full" except for `free` bytes, or "read-only". Skips without permission to mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", 0, b"size=4m"):
        pytest.skip(f"needs the right to mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        tree = Tree(place)
        if what == "full":
            with (place / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError):
                while True:
                    filler.write(b"x" * 4096)
            os.truncate(place / "filler", (place / "filler").stat().st_size - free)
        else:
            remount, read_only = 0x20, 0x1
            assert libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", remount | read_only, b"") == 0
        yield tree
    finally:
        libc.umount2(str(place).encode(), 2)
