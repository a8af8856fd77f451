"""`devtool wheel`: the wheel of a repository's kernels, installed beside pyxla without the repository."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from devtool.errors import DevtoolError
from devtool.release.wheel import platform_tag
from tests.conftest import ROOT
from tests.devtool.scaffold.test_init import environment, made, run
from tests.devtool_tree import HAS_NVCC

SCRIPT = """
import torch
import torch_xla
from pyxla.library.find import find_library

x = torch.linspace(-3.0, 5.0, 1000)
result = torch.ops.my_kernels.scaled(x.to("xla"), 2.5)
assert 'custom_call_target="my_kernels_scaled"' in torch_xla._XLAC._get_xla_tensors_hlo([result])
torch.testing.assert_close(result.cpu(), 2.5 * x)
print(find_library("scaled", "my_kernels").origin)
"""


def wheel_of(repository: Path, *options: str) -> Path:
    result = run(repository, "wheel", *options)
    assert result.returncode == 0, result.stderr
    return repository / result.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return wheel_of(made(tmp_path_factory.mktemp("wheel"), "my-kernels"))


@pytest.fixture
def installed(wheel, tmp_path):
    """A folder for PYTHONPATH, as pip installs the wheel."""
    site = tmp_path / "site"
    options = ("--no-deps", "--no-index", "--quiet", "--target", site)
    subprocess.run([sys.executable, "-m", "pip", "install", *options, wheel], check=True)
    return site


def call(site: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-P", "-c", SCRIPT]
    return subprocess.run(command, env=environment(site), capture_output=True, text=True, check=False)


def test_wheel_contains_the_op_and_nothing_of_its_sources(wheel):
    # GCC 12 gives std::condition_variable::wait the version GLIBCXX_3.4.30.
    assert wheel.name == f"my_kernels-0.1.0-py3-none-manylinux_2_35_{os.uname().machine}.whl"
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
        metadata = archive.read("my_kernels-0.1.0.dist-info/METADATA").decode()
        entries = archive.read("my_kernels-0.1.0.dist-info/entry_points.txt").decode()
    names = ("__init__.py", "cases.py", "libscaled.json", "libscaled.so", "scaled.py")
    assert sorted(files) == sorted(["my_kernels/__init__.py", *(f"my_kernels/scaled/{name}" for name in names)])
    assert "\nRequires-Dist: pyxla>=" in metadata and "[pyxla.kernels]\nmy_kernels = my_kernels\n" in entries


def test_installed_wheel_defines_its_op_at_import_of_torch_xla(installed):
    result = call(installed)
    assert (result.returncode, result.stdout) == (0, "installed\n"), result.stderr


@pytest.mark.slow
def test_editable_install_defines_the_op(tmp_path):
    """As the repository's README has it: pip install -e."""
    repository = made(tmp_path, "my-kernels")
    assert run(repository, "build").returncode == 0
    clean = tmp_path / "clean"
    venv.create(clean, symlinks=True)
    # The wheels of this environment, and this checkout's packages as an editable install has them.
    (next(clean.glob("lib/python3*/site-packages")) / "locked.pth").write_text(sysconfig.get_path("purelib"))
    link = [sys.executable, ROOT / "nix/link_checkout.py", ROOT]
    site = subprocess.run(link, check=True, capture_output=True, text=True).stdout.strip()
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    pip = [sys.executable, "-m", "pip", "--python", clean / "bin/python", "install", *options, "-e", repository]
    subprocess.run(pip, check=True)
    result = subprocess.run(
        [clean / "bin/python", "-P", "-c", SCRIPT],
        env=environment(Path(site)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "checkout\n"), result.stderr


def test_same_bytes_from_another_path(wheel, tmp_path):
    other = wheel_of(made(tmp_path, "my-kernels"))
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, other)}
    assert len(digests) == 1


def test_verify_takes_the_wheel(wheel, tmp_path):
    result = run(tmp_path, "verify", str(wheel), "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["op"], report["namespace"], report["verdicts"]["sha256"]) == ("scaled", "my_kernels", "ok")


NEEDS_SOURCE = """
from pathlib import Path
from my_kernels.scaled import scaled

def test_source():
    assert Path(scaled.__file__).with_name("scaled.h").is_file()
"""


@pytest.mark.slow
def test_check_runs_the_tests_without_the_repository(tmp_path):
    """A test that needs the sources passes in the repository alone."""
    repository = made(tmp_path, "my-kernels")
    wheel = wheel_of(repository, "--check")
    wheel.unlink()
    (repository / "kernels/scaled/test_source.py").write_text(NEEDS_SOURCE)
    result = run(repository, "test", "scaled", "--", "-k", "test_source")
    assert result.returncode == 0 and "1 passed" in result.stdout, result.stdout
    result = run(repository, "wheel", "--check")
    assert result.returncode == 1 and result.stdout == ""
    assert "FAILED scaled/test_source.py::test_source" in result.stderr
    message = f"wheel: --check: expected the tests of {wheel.name} to pass, pytest failed (exit status 1)"
    assert message in result.stderr and not wheel.exists()


@pytest.mark.slow
def test_check_of_a_wheel_that_asks_for_what_is_not_installed(tmp_path):
    repository = made(tmp_path, "my-kernels")
    path = repository / "pyproject.toml"
    path.write_text(path.read_text().replace('["pyxla>=0.1.0"]', '["pyxla>=0.1.0", "numpy<1"]'))
    result = run(repository, "wheel", "--check")
    assert result.returncode == 1 and not (repository / "dist").exists()
    got = "Could not find a version that satisfies the requirement numpy<1 (from my-kernels) (from versions: none)"
    message = "wheel: --check: expected pip to install my_kernels-0.1.0-py3-none-manylinux_2_35_"
    assert message in result.stderr and f", got {got}" in result.stderr


def test_library_that_was_swapped_after_the_installation(installed):
    shutil.copy(ROOT / "build/lib/libsimple_add.so", installed / "my_kernels/scaled/libscaled.so")
    result = call(installed)
    assert result.returncode == 1
    assert "LibraryError: scaled: library: expected SHA-256 " in result.stderr


def test_library_that_was_swapped_inside_of_the_wheel(wheel, tmp_path):
    """`devtool verify` sees it before anybody installs the wheel."""
    swapped = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(swapped, "w") as archive:
        for name in whole.namelist():
            other = (ROOT / "build/lib/libsimple_add.so").read_bytes()
            archive.writestr(name, other if name.endswith(".so") else whole.read(name))
    result = run(tmp_path, "verify", str(swapped))
    assert result.returncode == 1
    assert "scaled: library: expected SHA-256 " in result.stderr and f"{swapped}:my_kernels/scaled/" in result.stderr


@pytest.fixture
def swapped(wheel):
    """The library of the repository that made the wheel, replaced by another until the test ends."""
    library = wheel.parents[1] / "build/lib/libscaled.so"
    content, times = library.read_bytes(), (library.stat().st_atime_ns, library.stat().st_mtime_ns)
    shutil.copyfile(ROOT / "build/lib/libsimple_add.so", library)
    yield library
    library.write_bytes(content)
    os.utime(library, ns=times)


def test_library_that_was_swapped_before_the_wheel(wheel, swapped):
    """ninja takes any file of this name for what it built."""
    built = json.loads(swapped.with_suffix(".json").read_text())["sha256"]
    got = hashlib.sha256(swapped.read_bytes()).hexdigest()
    result = run(wheel.parents[1], "wheel", "--output", "swapped")
    message = f"wheel: libscaled.so: expected SHA-256 {built[:12]} (libscaled.json), got {got[:12]}"
    assert f"{message}\n\nhint: devtool build scaled --clean\n" in result.stderr
    assert result.returncode == 1 and not (wheel.parents[1] / "swapped").exists()


@pytest.mark.slow
def test_wheel_without_code_for_gpus_says_so(wheel):
    """Its name is that of a wheel with such code."""
    result = run(wheel.parents[1], "wheel", "--output", "auto", PYXLA_CUDA="auto")
    assert result.returncode == 0, result.stderr
    said = "wheel: no nvcc, so the wheel has no code for GPUs; with --cuda on that is an error"
    assert (said in result.stderr) == (not HAS_NVCC)


def test_wheel_of_pyxlas_own_checkout():
    result = run(ROOT, "wheel")
    message = "wheel: repository: expected one of kernels of your own, got pyxla's own checkout"
    assert result.returncode == 1 and result.stderr.startswith(message)


def test_wheel_without_ops(tmp_path):
    repository = made(tmp_path, "empty-one")
    shutil.rmtree(repository / "kernels/scaled")
    result = run(repository, "wheel")
    assert result.returncode == 1 and result.stderr.startswith("wheel: ops: expected some in ")
    assert not (repository / "dist").exists()


def test_tag_is_of_the_oldest_system_that_has_what_the_libraries_need(tmp_path):
    """A function of a later libstdc++ raises the tag; a library of another package has none."""
    compile_ = ["g++", "-shared", "-fPIC", "-std=c++20", "-x", "c++", "-", "-o"]
    later = tmp_path / "liblater.so"
    source = "#include <memory_resource>\nvoid* f() { return std::pmr::get_default_resource(); }"  # GLIBCXX_3.4.28
    subprocess.run([*compile_, later], input=source, text=True, check=True)
    assert platform_tag([later]) == f"manylinux_2_31_{os.uname().machine}"
    foreign = tmp_path / "libforeign.so"
    subprocess.run([*compile_, foreign, "-Wl,--no-as-needed", "-lz"], input="", text=True, check=True)
    with pytest.raises(DevtoolError, match=r"wheel: libforeign\.so: expected a library of every system, got libz\.so"):
        platform_tag([later, foreign])
