"""The headers and the CMake project of pyxla, used by a folder of ops that lies elsewhere, with CMake alone."""

import shutil
import subprocess
import sys
from pathlib import Path

import pyxla
from devtool.processes import locate
from pyxla.library.op_table import read_op_table
from pyxla.library.source_digest import source_digest
from tests.devtool_tree import TINY, needs_nvcc

# The paths of both folders could enter the library.
PLACED = f"""{TINY}
#include "_family/family_place.h"
#include "pyxla/pyxla_place.h"
const char* place(int i);
const char* place(int i) {{ return i == 0 ? __FILE__ : i == 1 ? family_place() : pyxla_place(); }}
"""
HEADER = "#pragma once\ninline const char* NAME() { return __FILE__; }\n"


def cmake(*arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run([locate("cmake"), *map(str, arguments)], capture_output=True, text=True, check=False)


def configure(recipe: str, build: Path, *options: str) -> subprocess.CompletedProcess:
    tools = (f"-DCMAKE_MAKE_PROGRAM={locate('ninja')}", f"-DPython3_EXECUTABLE={sys.executable}", "-DPYXLA_CUDA=OFF")
    return cmake("-G", "Ninja", "-S", recipe, "-B", build, *tools, *options)


def install(recipe: str, kernels: Path, place: Path, package: str) -> Path:
    """Builds and installs the ops; returns the folder of the package."""
    options = (f"-DPYXLA_KERNELS={kernels}", f"-DPYXLA_PACKAGE={package}")
    for done in (
        configure(recipe, place / "build", *options),
        cmake("--build", place / "build"),
        cmake("--install", place / "build", "--prefix", place),
    ):
        assert done.returncode == 0, done.stdout + done.stderr
    return place / package


def write_ops(kernels: Path) -> Path:
    header = HEADER.replace("NAME", "family_place")
    for name, text in {"one/one_ffi.cc": PLACED.replace("NAME", "one"), "_family/family_place.h": header}.items():
        (kernels / name).parent.mkdir(parents=True)
        (kernels / name).write_text(text)
    return kernels


def test_same_bytes_with_pyxla_in_a_checkout_and_installed(tmp_path, monkeypatch):
    """Wherever the ops and pyxla are. Only the checkout has the sources of what CUDA needs, and not for these ops."""
    here, there = write_ops(tmp_path / "here/kernels"), write_ops(tmp_path / "over there/my ops")
    checkout, installed = tmp_path / "checkout/pyxla", tmp_path / "site-packages/pyxla"
    package = Path(pyxla.include_dir()).parent
    shutil.copytree(package, checkout)
    for name in ("include", "cmake"):
        shutil.copytree(package / name, installed / name, ignore=shutil.ignore_patterns("__pycache__"))
    for copy in (checkout, installed):
        (copy / "include/pyxla/pyxla_place.h").write_text(HEADER.replace("NAME", "pyxla_place"))
    (installed / "cmake/__pycache__").mkdir()
    (installed / "cmake/__pycache__/find_wheel.pyc").touch()
    packages = (
        install(str(checkout / "cmake"), here, tmp_path / "a", "my_kernels"),
        install(str(installed / "cmake"), there, tmp_path / "b", "their_kernels"),
    )
    first, second = ({p.relative_to(package): p.read_bytes() for p in package.rglob("*.*")} for package in packages)
    assert first == second and {str(path) for path in first} == {"one/libone.so", "one/libone.json"}
    assert b"./pyxla/pyxla_place.h" in first[Path("one/libone.so")]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["build", "my_kernels"]
    monkeypatch.setattr("pyxla.library.source_digest.include_dir", lambda: str(checkout / "include"))
    assert read_op_table(packages[0] / "one/libone.so").source_digest == source_digest(here, "one")


@needs_nvcc
def test_device_code_in_a_path_with_spaces(tmp_path):
    """nvcc hands the host compiler's options to a shell."""
    kernels = tmp_path / "mein Projekt ä/my ops"
    (kernels / "one").mkdir(parents=True)
    (kernels / "one/one_ffi.cc").write_text(TINY.replace("NAME", "one"))
    (kernels / "one/one.cu").write_text("const char* place() { return __FILE__; }\n")
    options = (f"-DPYXLA_KERNELS={kernels}", "-DPYXLA_CUDA=ON", "-DPYXLA_ARCHITECTURES=80-real")
    done = configure(pyxla.cmake_dir(), tmp_path / "build", *options)
    assert done.returncode == 0, done.stderr
    done = cmake("--build", tmp_path / "build")
    assert done.returncode == 0, done.stdout
    content = (tmp_path / "build/lib/libone.so").read_bytes()
    assert b"./one/one.cu" in content and b"Projekt" not in content


def test_folder_of_the_ops_is_not_named_or_not_there(tmp_path):
    for options in ((), (f"-DPYXLA_KERNELS={tmp_path / 'nowhere'}",)):
        done = configure(pyxla.cmake_dir(), tmp_path / "build", *options)
        got = options[0].partition("=")[2] if options else ""
        assert done.returncode != 0
        assert f"build: PYXLA_KERNELS: expected the folder with the op folders, got '{got}'\n" in done.stderr
        assert f"hint: cmake -S {pyxla.cmake_dir()} -B build -DPYXLA_KERNELS=<folder>\n" in done.stderr
