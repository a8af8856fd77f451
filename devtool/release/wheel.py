"""Makes the wheel of a repository's kernels: the Python files of kernels/, the built libraries and their manifests.

The libraries know nothing of Python, so one wheel serves every Python 3 of its platform. Its version, dependencies and
entry points are those of pyproject.toml. The same sources give the same bytes, wherever they lie.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from devtool import project
from devtool.building.build import Options, build_ops
from devtool.errors import DevtoolError
from devtool.release.system_needs import read_needs

# glibc -> the newest versions of libstdc++ and libgcc on systems with it: auditwheel's policies, the oldest first.
_POLICIES = {
    "2.17": {"GLIBCXX": "3.4.19", "CXXABI": "1.3.7", "GCC": "4.8.0"},
    "2.28": {"GLIBCXX": "3.4.25", "CXXABI": "1.3.11", "GCC": "8.0.0"},
    "2.31": {"GLIBCXX": "3.4.28", "CXXABI": "1.3.12", "GCC": "9.0.0"},
    "2.34": {"GLIBCXX": "3.4.29", "CXXABI": "1.3.13", "GCC": "11.0.0"},
    "2.35": {"GLIBCXX": "3.4.30", "CXXABI": "1.3.13", "GCC": "12.0.0"},
}
# Run in a folder with the repository's pyproject.toml and with the files of the wheel; setuptools does the rest.
_SETUP = """
from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

class WithLibraries(Distribution):
    def parse_config_files(self, *arguments, **options):
        super().parse_config_files(*arguments, **options)
        # In place of [tool.setuptools] of pyproject.toml, which serves editable installs.
        self.packages, self.package_dir = {packages!r}, {{{package!r}: "kernels"}}
        self.package_data, self.include_package_data = {{"": ["**/*"]}}, False

    def has_ext_modules(self):
        return True

class AnyPython3(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]

setup(distclass=WithLibraries, cmdclass={{"bdist_wheel": AnyPython3}})
"""


def make_wheel(output: Path, options: Options, check: Callable[[Path], None] | None = None) -> Path:
    """Builds all ops and writes the wheel into a folder; returns its path.

    Args:
        output: the folder; it is made if it does not exist.
        options: how to build.
        check: gets the wheel before it is in the folder; if it raises, the folder does not get the wheel.

    Raises:
        DevtoolError: the repository is pyxla's own or has no ops, a build fails, a library was changed after its build,
            or it needs more than systems with glibc 2.35 have.
    """
    repository, ops = project.repository(), project.op_names()
    if project.device_targets():
        message = "wheel: repository: expected one of kernels of your own, got pyxla's own checkout"
        raise DevtoolError(message, "devtool nix build .#wheel, or pip wheel .")
    if not ops:
        raise DevtoolError(f"wheel: ops: expected some in {project.kernels()}, got none", "devtool new-op my_op")
    libraries = build_ops(ops, options)
    manifests = [_manifest_of_the_built(library) for library in libraries]
    if options.cuda != "off" and not any(manifest["cuda_architectures"] for manifest in manifests):
        click.echo("wheel: no nvcc, so the wheel has no code for GPUs; with --cuda on that is an error", err=True)
    tag = platform_tag(libraries)
    with tempfile.TemporaryDirectory(prefix="devtool-wheel-") as scratch:
        stage = Path(scratch, "stage")
        _stage(stage, ops, libraries)
        packages = [
            ".".join([repository.package, *init.parent.relative_to(stage / "kernels").parts])
            for init in sorted((stage / "kernels").rglob("__init__.py"))
        ]
        (stage / "setup.py").write_text(_SETUP.format(packages=packages, package=repository.package))
        command = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--plat-name", tag, "--dist-dir", scratch]
        # The time of the zip's entries.
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "315532800"}
        done = subprocess.run(command, cwd=stage, env=environment, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            message = f"wheel: pyproject.toml: expected setuptools to take it, got {reason}"
            raise DevtoolError(message, "correct the table [project] of pyproject.toml")
        (wheel,) = Path(scratch).glob("*.whl")
        if check:
            check(wheel)
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, output / wheel.name))


def _manifest_of_the_built(library: Path) -> dict[str, Any]:
    """Raises DevtoolError unless the manifest is that of the library: pyxla would refuse the two."""
    with library.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    manifest = json.loads(library.with_suffix(".json").read_text(encoding="utf-8"))
    if digest != (built := manifest["sha256"]):
        message = f"wheel: {library.name}: expected SHA-256 {built[:12]} ({library.stem}.json), got {digest[:12]}"
        raise DevtoolError(message, f"devtool build {library.stem.removeprefix('lib')} --clean")
    return manifest


def platform_tag(libraries: Sequence[Path]) -> str:
    """manylinux_2_<n>_<machine>: the oldest glibc with which all libraries load.

    Raises:
        DevtoolError: a library needs more than the newest of these systems has.
    """
    for glibc, others in _POLICIES.items():
        found = {library: list(_problems(library, {"GLIBC": glibc, **others})) for library in libraries}
        if not any(found.values()):
            return f"manylinux_{glibc.replace('.', '_')}_{os.uname().machine}"
    library, problems = next((library, problems) for library, problems in found.items() if problems)
    _, expected, got = problems[0]
    message = f"wheel: {library.name}: expected {expected}, got {got}"
    raise DevtoolError(message, "devtool verify build/lib shows all; an older compiler or system needs less")


def _problems(library: Path, newest: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    wrapped = library.parent / f"{library.stem.removeprefix('lib')}.wrapped"
    return read_needs(library).problems(next(iter(sorted(wrapped.glob("*"))), None), newest)


def _stage(stage: Path, ops: Sequence[str], libraries: Sequence[Path]) -> None:
    """Copies what the wheel is made from."""
    root, kernels = project.root(), project.kernels()
    stage.mkdir()
    for pattern in ("pyproject.toml", "README*", "LICENSE*", "LICENCE*", "COPYING*"):
        for path in root.glob(pattern):
            shutil.copyfile(path, stage / path.name)
    for path in sorted(kernels.rglob("*")):
        place = path.relative_to(kernels)
        wanted = (path.suffix == ".py" and not path.name.startswith(("test_", "conftest"))) or path.name == "implements"
        if wanted and not any(part.startswith(".") for part in place.parts):
            (stage / "kernels" / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, stage / "kernels" / place)
    for op, library in zip(ops, libraries, strict=True):
        for path in (library, library.with_suffix(".json")):
            shutil.copyfile(path, stage / "kernels" / op / path.name)
        if (wrapped := library.parent / f"{op}.wrapped").is_dir():
            shutil.copytree(wrapped, stage / "kernels" / op / wrapped.name, copy_function=shutil.copyfile)
