"""The library that an op gets, and the error for each library that does not fit."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyxla import packages
from pyxla.errors import LibraryError
from pyxla.library import find, register
from pyxla.library.find import Library, find_library, library_path
from pyxla.library.op_table import OpTable, read_op_table
from pyxla.library.source_digest import source_digest
from tests.conftest import ROOT, compile_library

BUILT = ROOT / "build/lib"


def run_script(text: str, *, preload: str = "", check: bool = True, **environment: str) -> subprocess.CompletedProcess:
    """Runs a script as a user would: outside the checkout, with the libraries preloaded."""
    env = {**os.environ, "PJRT_DEVICE": "CPU", "LD_PRELOAD": preload, **environment}
    env.pop("XLA_FLAGS", None)
    result = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True)
    assert not check or result.returncode == 0, result.stderr
    return result


def test_preloaded_library_needs_only_torch_and_torch_xla():
    script = """
import torch, torch_xla, sys
from torch_xla.core import xla_builder
x = torch.ones(2, 3).to(torch_xla.device())
print(torch.ops.xla_gpu.simple_add(x, x, 2.0).cpu().tolist())
from pyxla.library import register
print(register._registered[("xla_gpu_simple_add", "Host")])
"""
    output = run_script(script, preload=str(BUILT / "libsimple_add.so")).stdout.splitlines()
    assert output == [str([[3.0] * 3] * 2), str(BUILT / "libsimple_add.so")]


@pytest.mark.parametrize("variable", ["$ORIGIN", "${ORIGIN}"])
def test_preloaded_library_by_a_path_that_the_loader_fills_in(variable):
    """Taken literally, the path is a missing file, with which `import torch_xla` would fail."""
    built = os.path.relpath(BUILT, Path(sys.executable).resolve().parent)
    script = "import torch_xla; from pyxla.library import register; print(*register._registered.values())"
    output = run_script(script, preload=f"{variable}/{built}/libsimple_add.so").stdout.split()
    assert output == [str(BUILT / "libsimple_add.so")]


def test_without_preload_the_built_library_is_registered_on_first_use():
    script = """
import torch, torch_xla
from pyxla.library import register
print(register._registered)
x = torch.ones(2).to(torch_xla.device())
print(torch.ops.xla_gpu.simple_add(x, x).cpu().tolist(), register._registered.keys())
"""
    output = run_script(script).stdout.splitlines()
    assert output == ["{}", "[2.0, 2.0] dict_keys([('xla_gpu_simple_add', 'Host')])"]


def test_preloaded_library_without_a_definition(tmp_path):
    path = compile_library(ROOT / "tests/probe/probe_ffi.cc", tmp_path / "libprobe.so")
    script = "import torch_xla; from pyxla.library import register; print(len(register._registered))"
    result = run_script(script, preload=str(path))
    handlers = read_op_table(path).handlers
    assert len(handlers) > 1 and result.stdout.split() == [str(len(handlers))]
    assert f"probe: definition: expected probe.py, got none for {path}" in result.stderr


def test_preloaded_library_wins_over_the_built_one(tmp_path):
    copy = shutil.copy(BUILT / "libsimple_add.so", tmp_path)
    script = (
        "import pyxla.library.find as l; print(l.find_library('simple_add').path, l.find_library('rms_norm').origin)"
    )
    output = run_script(script, preload=str(copy)).stdout.split()
    assert output == [str(copy), "checkout"]


def test_two_preloaded_libraries_with_one_op(tmp_path):
    copy = shutil.copy(BUILT / "libsimple_add.so", tmp_path)
    result = run_script("import torch_xla", preload=f"{BUILT / 'libsimple_add.so'}:{copy}", check=False)
    assert "simple_add: LD_PRELOAD: expected one library with this op, got" in result.stderr
    assert str(copy) in result.stderr and str(BUILT / "libsimple_add.so") in result.stderr


def test_two_libraries_with_one_target(tmp_path, probe_library):
    other = compile_library(ROOT / "tests/probe/probe_ffi.cc", tmp_path / "libother.so")
    with pytest.raises(
        LibraryError, match=r"expected one library with xla_gpu_probe_attributes, got .*libprobe.so and .*libother.so"
    ):
        register.register_library(Library(other, "preloaded", read_op_table(other)))


def test_library_of_another_kind_has_no_table():
    assert (
        read_op_table(
            Path(
                next(
                    line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm.so" in line
                )
            )
        )
        is None
    )


@pytest.mark.parametrize("kept", [0, 10, 63, 64, 1000, 0.5, -1])
def test_truncated_library(tmp_path, kept):
    """dlopen of a truncated library ends in SIGBUS, so the file must be rejected before that."""
    content = (BUILT / "libsimple_add.so").read_bytes()
    cut = tmp_path / "libsimple_add.so"
    cut.write_bytes(content[: int(len(content) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(LibraryError, match=r"simple_add: library: expected .*\n\nhint: devtool build simple_add"):
        read_op_table(cut)


def test_text_file_instead_of_a_library(tmp_path):
    path = tmp_path / "libsimple_add.so"
    path.write_text("not a library\n" * 100)
    with pytest.raises(LibraryError, match="expected a 64-bit ELF library"):
        read_op_table(path)


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        (5, b"\x02", "a 64-bit ELF library"),  # big-endian
        (54, b"\x00\x00", "a 64-bit ELF library"),  # the size of a program header
        (54, b"\x14\x00", "a 64-bit ELF library"),
        (32, b"\xff" * 8, r"\d+ bytes, as its ELF header says"),  # where the program headers are
        (40, b"\xff" * 8, r"\d+ bytes, as its ELF header says"),  # where the sections are
    ],
)
def test_header_that_was_altered(tmp_path, place, value, expected):
    """An impossible size or offset must not raise struct.error or ValueError."""
    content = bytearray((BUILT / "libsimple_add.so").read_bytes())
    content[place : place + len(value)] = value
    path = tmp_path / "libsimple_add.so"
    path.write_bytes(content)
    with pytest.raises(LibraryError, match=f"^simple_add: library: expected {expected}, got "):
        read_op_table(path)


def test_library_for_another_machine(tmp_path):
    content = bytearray((BUILT / "libsimple_add.so").read_bytes())
    content[18:20] = (183 if content[18] == 62 else 62).to_bytes(2, "little")
    path = tmp_path / "libsimple_add.so"
    path.write_bytes(content)
    with pytest.raises(LibraryError, match=r"simple_add: library: expected code for .*, got ELF machine"):
        read_op_table(path)


def test_no_library_anywhere():
    with pytest.raises(
        LibraryError,
        match=r"no_such_op: library: expected libno_such_op.so, got none[^$]*hint: devtool build no_such_op",
    ):
        find_library("no_such_op")


def use_package(monkeypatch, folder):
    """Makes this folder the only kernel package."""
    package = packages.KernelPackage(packages.NAMESPACE, "pyxla_kernels", folder, "pyxla")
    monkeypatch.setattr(packages, "kernel_packages", lambda: (package,))


def test_stale_library(tmp_path, monkeypatch):
    kernels, include = tmp_path / "kernels", tmp_path / "pyxla/include"
    shutil.copytree(ROOT / "kernels", kernels)
    for name in ("include", "cmake"):
        shutil.copytree(ROOT / "pyxla" / name, tmp_path / "pyxla" / name)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "build").mkdir()
    shutil.copytree(BUILT, tmp_path / "build/lib")
    monkeypatch.setattr("pyxla.library.source_digest.include_dir", lambda: str(include))
    use_package(monkeypatch, kernels)
    monkeypatch.setattr(find, "preloaded_libraries", lambda: ())
    assert find_library("simple_add").origin == "checkout"
    with (kernels / "simple_add/simple_add.h").open("a") as header:
        header.write("// changed\n")
    assert find_library("rms_norm").origin == "checkout"
    with pytest.raises(
        LibraryError, match=r"simple_add: library: expected source digest .*\n\nhint: devtool build simple_add"
    ):
        find_library("simple_add")
    with (include / "pyxla/ffi/checks.h").open("a") as header:
        header.write("// changed\n")
    with pytest.raises(LibraryError, match="rms_norm: library: expected source digest"):
        find_library("rms_norm")


def test_source_digest_is_the_one_that_the_build_writes():
    for op in ("simple_add", "rms_norm", "paged_attention"):
        assert find_library(op).table.source_digest == source_digest(ROOT / "kernels", op)


def test_installed_library_has_no_sources_to_be_stale_against(installed):
    assert library_path("simple_add") == (installed, "installed")
    assert find_library("simple_add").origin == "installed"


def library(**changes) -> Library:
    table = OpTable("rms_norm", (0, 1), ("80-real", "90a-real", "100-real", "100-virtual"), "", "", "", ())
    return Library(Path("librms_norm.so"), "checkout", replace(table, **changes))


def test_ffi_version():
    register.check_ffi_version(library(), (0, 1))
    register.check_ffi_version(library(ffi_api_version=(0, 0)), (0, 1))
    for version in ((0, 2), (1, 0)):
        with pytest.raises(
            LibraryError, match=rf"rms_norm: FFI API version: expected 0.1 or .*, got {version[0]}.{version[1]}"
        ):
            register.check_ffi_version(library(ffi_api_version=version), (0, 1))


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)])
def test_architecture_fits(capability):
    register.check_architecture(library(), capability)


@pytest.mark.parametrize(
    ("architecture", "capability"),
    [("100f-real", (10, 3)), ("100f-virtual", (10, 3)), ("90", (9, 0)), ("90", (12, 0)), ("90a", (9, 0))],
)
def test_other_architecture_that_fits(architecture, capability):
    """CMake's other forms: code for a family of GPUs, and code and PTX together."""
    register.check_architecture(library(cuda_architectures=(architecture,)), capability)


@pytest.mark.parametrize(
    ("architectures", "capability"),
    [
        (("100f-real", "100f-virtual"), (12, 0)),
        (("103f-real",), (10, 0)),
        (("90a", "90a-virtual"), (10, 0)),
        (("80-real", "90a-real", "100-real", "100-virtual"), (7, 5)),
        (("90a-real",), (10, 0)),
        (("80-real",), (9, 0)),
        (("100-virtual",), (9, 0)),
        (("86-real",), (8, 0)),
        ((), (9, 0)),
    ],
)
def test_architecture_does_not_fit(architectures, capability):
    with pytest.raises(
        LibraryError, match=f"rms_norm: CUDA architecture: expected code for sm_{capability[0]}{capability[1]}, got"
    ):
        register.check_architecture(library(cuda_architectures=architectures), capability)


def test_unknown_target_on_a_known_library():
    with pytest.raises(
        LibraryError, match=r"simple_add: target: expected xla_gpu_other on Host, got xla_gpu_simple_add on Host"
    ) as caught:
        register.ensure_registered("simple_add", "xla_gpu_other", "Host")
    # Another build would not help: one of the two names is misspelt.
    assert caught.value.hint == (
        "PYXLA_OP_TABLE in simple_add_ffi.cc names the targets; Python's function of the op names xla_gpu_other"
    )


def test_no_handler_on_the_platform():
    host = SimpleNamespace(target="xla_gpu_simple_add", platform="Host")
    only_host = SimpleNamespace(path="lib.so", table=SimpleNamespace(op="simple_add", handlers=(host,)))
    error = register.missing_target("simple_add", only_host, "xla_gpu_simple_add", "CUDA")
    assert error.hint == "devtool build simple_add --cuda on"


def test_a_broken_definition_does_not_hide_the_other_ops(tmp_path):
    """`import pyxla` warns about an op whose file does not import, also under -W error, and defines the others."""
    shutil.copytree(ROOT / "kernels", tmp_path / "pyxla_kernels")
    (tmp_path / "pyxla_kernels/rms_norm/rms_norm.py").write_text("\nimport no_such_module\n")
    shutil.copytree(ROOT / "pyxla", tmp_path / "pyxla")
    script = "import torch, pyxla; print(hasattr(torch.ops.xla_gpu, 'simple_add'))"
    script = "import warnings; warnings.simplefilter('error', UserWarning); " + script
    result = run_script(script, PYTHONPATH=str(tmp_path))
    assert result.stdout.split() == ["True"]
    assert "rms_norm: definition: expected an importable rms_norm.py, got ModuleNotFoundError" in result.stderr
    assert f"({tmp_path / 'pyxla_kernels/rms_norm/rms_norm.py'}:2)" in result.stderr
    assert result.stderr.count(": definition: ") == 1  # not again for rms_norm's implementation
