"""Builds op libraries with CMake and ninja (pyxla/cmake/CMakeLists.txt describes the build)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from devtool import project
from devtool.building.editor import write_commands
from devtool.building.ninja_output import NinjaOutput
from devtool.building.tools import find_nvcc, require_compiler, require_tool, toolchain
from devtool.building.variant import Variant
from devtool.errors import DevtoolError
from devtool.processes import run_lines

# Variables that the user may set in addition to the options; another value means another configuration.
_ENVIRONMENT = ("CXX", "CXXFLAGS", "LDFLAGS", "CUDACXX", "CUDAFLAGS", "CUDAHOSTCXX", "CMAKE_CXX_COMPILER_LAUNCHER")
# Set by Nix: the text about nixpkgs in the manifests, and in nothing that is compiled.
_NIXPKGS = "PYXLA_NIXPKGS_BUILD"
# Text in the output of a compiler or CMake -> the cause, and the hint.
_SYMPTOMS = (
    ("No space left on device|Disk quota exceeded|File too large", "the disk is full", "free some space"),
    ("Read-only file system|Permission denied", "the tree is read-only", "make it writable, or copy it elsewhere"),
    ("Killed signal|[Oo]ut of memory|[Cc]annot allocate memory", "the memory ran out", "build one op at a time"),
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """How to build.

    Attributes:
        cuda: "auto" (where nvcc is found), "on" or "off".
        sanitize: "address", "undefined", "address,undefined" or None.
        variant: other sources or flags; None: those of the repository.
        jobs: how many commands run at a time; None: as many as ninja takes.
    """

    cuda: str = "auto"
    sanitize: str | None = None
    variant: Variant | None = None
    jobs: int | None = None

    @property
    def folder(self) -> Path:
        """Where CMake works."""
        return self.variant.folder / "cmake" if self.variant else project.build_folder(self.sanitize)

    @property
    def libraries(self) -> Path:
        """Where the libraries go."""
        return self.variant.folder / "lib" if self.variant else project.library_folder(self.sanitize)


def for_cpu(options: Options) -> Options:
    """The options of a command that runs ops on the CPU: `auto` becomes what the last build had, or else `off`.

    Any other configuration recompiles everything, and so does the next build that needs CUDA code.
    """
    if options.cuda != "auto":
        return options
    with contextlib.suppress(LookupError, TypeError):
        words = _last_configuration(options.folder)["command"]
        return replace(options, cuda=dict(word.split("=", 1) for word in words if "=" in word)["-DPYXLA_CUDA"].lower())
    return replace(options, cuda="off")


def build_ops(ops: Sequence[str], options: Options, *, clean: bool = False) -> list[Path]:
    """Builds the libraries of these ops and returns their paths; reports on stderr.

    Args:
        ops: names; from `project.select_ops`.
        clean: first remove what an earlier build made of them.

    Raises:
        DevtoolError: a tool is missing, or CMake or a compiler failed.
    """
    started = time.monotonic()
    with _locked_folder(options) as folder:
        if clean and list(ops) == project.op_names():
            for path in (folder, options.libraries):
                shutil.rmtree(path, ignore_errors=True)
        ninja = _configure(folder, options)
        if clean:
            run_lines([ninja, "-C", str(folder), "-t", "clean", *ops], lambda line: None)
        libraries = [options.libraries / f"lib{op}.so" for op in ops]
        for path in libraries if clean else ():
            path.with_suffix(".json").unlink(missing_ok=True)  # ninja removes only the library next to it
        if not options.variant:
            _remove_orphans(options.libraries)
        before = list(map(_identity, libraries))
        jobs = ["-j", str(options.jobs)] if options.jobs else []
        _run_ninja(ninja, folder, [*jobs, *ops, *([] if options.variant else project.device_targets())])
        built = [op for op, path, old in zip(ops, libraries, before, strict=True) if _identity(path) != old]
    if built:
        click.echo(f"build: built {', '.join(built)} in {time.monotonic() - started:.1f} s", err=True)
    else:
        click.echo("build: nothing to do", err=True)
    return libraries


def _remove_orphans(folder: Path) -> None:
    """Removes libraries whose folder in kernels/ is gone: pyxla would still find them, and nothing would rebuild them.

    Only those with a manifest, which the build writes. git leaves a folder with __pycache__: it is gone too.
    """
    ops = project.op_names()
    for manifest in folder.glob("lib*.json"):
        op = manifest.stem.removeprefix("lib")
        if op in ops:
            continue
        for path in (manifest.with_suffix(".so"), manifest):
            path.unlink(missing_ok=True)
        shutil.rmtree(folder / f"{op}.wrapped", ignore_errors=True)
        click.echo(f"build: removed lib{op}.so, as kernels/{op} is gone", err=True)


def configure(options: Options) -> Path:
    """Runs CMake, compiles nothing, and returns compile_commands.json, which editors and clangd read.

    Raises:
        DevtoolError: a tool is missing, or CMake failed.
    """
    with _locked_folder(options) as folder:
        _configure(folder, options)
        return write_commands(folder, find_nvcc())


def _run_ninja(ninja: str, folder: Path, arguments: Sequence[str]) -> None:
    output = NinjaOutput()
    # -k 0: show everything that fails, at once.
    status = run_lines(
        [ninja, "-C", str(folder), "-k", "0", *arguments], output, {**os.environ, "NINJA_STATUS": "[%f/%t] "}
    )
    output.close()
    if status and "rebuilding 'build.ninja'" in output.text():  # an op folder was added or removed, and CMake failed
        raise _configure_failure(output.text())
    if status:
        where, got = output.blame()
        # Not every target of ninja is an op.
        again = " ".join(["devtool build", *(op for op in project.op_names() if op in where.split(", "))])
        raise _failure(where, "it to build", got, output.text(), f"correct the error above, then {again}")


def _configure(folder: Path, options: Options) -> str:
    """Runs CMake unless the folder is configured for the same options, interpreter and compilers; returns ninja."""
    cmake, ninja = require_tool("cmake"), require_tool("ninja")
    require_compiler()
    variant = options.variant
    recipe, kernels = (variant.recipe, variant.kernels) if variant else (_recipe(), project.kernels())
    command = [
        cmake, "-G", "Ninja", "-S", str(recipe), "-B", str(folder),
        f"-DPYXLA_KERNELS={kernels}", f"-DPYXLA_NAMESPACE={project.repository().namespace}",
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        f"-DPython3_EXECUTABLE={sys.executable}", f"-DPYXLA_LIBRARY_DIR={options.libraries}",
        f"-DPYXLA_CUDA={options.cuda.upper()}", f"-DPYXLA_SANITIZE={options.sanitize or ''}", *_architectures(),
    ]  # fmt: skip
    more = {"CXX": variant.flags, "CUDA": f"{variant.flags} {variant.cuda_flags}".strip()} if variant else {}
    # After those of CMake's build type, which the recipe takes by default, so that they take precedence.
    command += [f"-DCMAKE_{name}_FLAGS_RELEASE=-O3 -DNDEBUG {flags}" for name, flags in more.items() if flags]
    wanted = {
        "command": command,
        "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        "tools": {str(path): str(_identity(path)) for path in toolchain()},
        "nixpkgs": os.environ.get(_NIXPKGS),
    }
    last = _last_configuration(folder)
    if (folder / "build.ninja").is_file() and last == wanted:
        return ninja
    _configured(folder).unlink(missing_ok=True)
    # --fresh: otherwise CMake keeps the first compiler that it saw. CMake starts over, so everything is recompiled.
    # Another text in the manifests only links again.
    fresh = [] if last | {"nixpkgs": wanted["nixpkgs"]} == wanted else ["--fresh"]
    lines: list[str] = []
    if run_lines([*command[:1], *fresh, *command[1:]], lines.append):
        shown = "\n".join(line for line in lines if not line.startswith("-- ")).strip()
        click.echo(shown, err=True)
        raise _configure_failure(shown)
    _configured(folder).write_text(json.dumps(wanted, indent=1))
    if not (variant or options.sanitize) and (folder / "compile_commands.json").is_file():
        write_commands(folder, find_nvcc())
    return ninja


def _recipe() -> Path:
    return project.pyxla_folder() / "cmake"


def _architectures() -> list[str]:
    """CMake's option for the architectures in CUDAARCHS, CMake's own variable; without it the recipe has its list."""
    named = os.environ.get("CUDAARCHS")
    if not named:
        return []
    wrong = [name for name in named.split(";") if not re.fullmatch(r"[1-9]\d{1,2}[af]?(-real|-virtual)?", name)]
    if wrong:
        message = f"build: CUDAARCHS: expected architectures such as 80-real;90a-real;100-virtual, got {wrong[0]!r}"
        raise DevtoolError(message, "name numbers, with semicolons between them, or unset CUDAARCHS")
    return [f"-DPYXLA_ARCHITECTURES={named}"]


def _configured(folder: Path) -> Path:
    """The file that says what the folder is configured for."""
    return folder / "devtool_configuration.json"


def _last_configuration(folder: Path) -> dict[str, Any]:
    """What the folder is configured for; empty if nothing that can be read says so."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(_configured(folder).read_text())
        return found if isinstance(found, dict) else {}
    return {}


def _configure_failure(output: str) -> DevtoolError:
    hint = "correct the error above; devtool build --clean starts over"
    return _failure("configure", "CMake to succeed", "the error above", output, hint)


def _failure(what: str, expected: str, got: str, output: str, hint: str) -> DevtoolError:
    for pattern, cause, fix in _SYMPTOMS:
        if match := re.search(pattern, output):
            return DevtoolError(f"build: {what}: {cause} ({match[0]!r}, see above)", fix)
    return DevtoolError(f"build: {what}: expected {expected}, got {got}", hint)


def _identity(path: Path) -> tuple[int, int] | None:
    """A value that changes when the file does."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = path.stat()
        return status.st_mtime_ns, status.st_size
    return None


@contextlib.contextmanager
def _locked_folder(options: Options) -> Iterator[Path]:
    """CMake's folder, locked for one build at a time. The system releases the lock when devtool ends or is killed."""
    folder = options.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            click.echo(f"build: waiting for process {lock.read() or 'unknown'}, which builds in {folder}", err=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield folder
