"""What Nix builds with nix/host: the bytes of `devtool build`, and a stand-in that adds what nixpkgs' compilers add."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.flake import Flake

needs_nix = pytest.mark.skipif(shutil.which("nix") is None, reason="needs nix: apt-get install nix-bin")
needs_patchelf = pytest.mark.skipif(shutil.which("patchelf") is None, reason="needs patchelf: apt-get install patchelf")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return Flake(tmp_path_factory.mktemp("checkout"), whole=True)


def digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def built(flake: Flake, package: str, library: str) -> str:
    link = flake.root.parent / f"{flake.root.name}-result"
    result = flake.nix("build", "-o", str(link), f".#{package}")
    if "expected the wheel from the package index" in result.stderr:
        pytest.skip("needs the package index")
    assert result.returncode == 0, result.stderr
    return digest(link / "lib" / library)


@pytest.mark.slow
@needs_nix
@needs_patchelf
def test_same_bytes_from_nix_build_nix_develop_and_outside(checkout):
    command = [sys.executable, "-P", "-m", "devtool", "build", "simple_add", "--cuda", "off"]
    outside = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(command, cwd=checkout.root, env=outside | {"PYTHONPATH": str(checkout.root)}, check=True)
    library = checkout.root / "build/lib/libsimple_add.so"
    by_devtool = digest(library)
    assert built(checkout, "cpu.simple_add", library.name) == by_devtool
    shutil.rmtree(checkout.root / "build")
    result = checkout.nix("develop", ".#cpu", "-c", "devtool", "build", "simple_add")
    assert result.returncode == 0, result.stderr
    assert digest(library) == by_devtool


@pytest.mark.slow
@needs_nix
@needs_patchelf
@pytest.mark.parametrize(
    ("cure", "package"),
    [
        ('NIX_NO_SELF_RPATH = "1";', "cpu.simple_add"),
        ('NIX_DONT_SET_RPATH = "1";', "simple_add"),  # the folder of the CUDA runtime
        ('hardeningDisable = [ "all" ];', "cpu.simple_add"),
        ('NIX_CFLAGS_COMPILE = "-fomit-frame-pointer -momit-leaf-frame-pointer";', "cpu.simple_add"),
    ],
)
def test_stand_in_adds_what_nixpkgs_adds(checkout, tmp_path, cure, package):
    """Without one of the flake's requests the library differs, as it does with nixpkgs."""
    changed = checkout.copy(tmp_path / "flake")
    path = changed.root / "nix/default.nix"
    text = path.read_text()
    assert text.count(cure) == 1
    changed.write("nix/default.nix", text.replace(cure, ""))
    name = "libsimple_add.so"
    assert built(changed, package, name) != built(checkout, package, name)


# The stand-in's auto-patchelf


def shared_library(path: Path, *flags: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "-",
        "-x",
        "none",
        "-o",
        path,
        "-Wl,--no-as-needed",
        f"-Wl,-soname,{path.name}",
    ]
    subprocess.run([*command, *flags], input="", text=True, check=True)
    return path


def patched(out: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [ROOT / "nix/host/auto-patchelf"], env={**os.environ, "out": str(out), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def opener(tmp_path):
    """A library of $out with a RUNPATH of its own; it needs one of another package and one that is missing."""
    shared_library(tmp_path / "other/lib/libneeded.so.1")
    missing = shared_library(tmp_path / "libmissing.so.1")
    flags = [str(tmp_path / "other/lib/libneeded.so.1"), str(missing), "-Wl,-rpath,$ORIGIN"]
    library = shared_library(tmp_path / "out/site/libopener.so", *flags)
    missing.unlink()
    return library


@needs_patchelf
def test_auto_patchelf_replaces_the_folders_of_a_library(opener, tmp_path):
    patterns = {"autoPatchelfIgnoreMissingDeps": "libother.so libmiss*", "buildInputs": str(tmp_path / "other")}
    result = patched(tmp_path / "out", appendRunpaths="/run/driver", **patterns)
    assert result.returncode == 0, result.stderr
    runpath = subprocess.run(["patchelf", "--print-rpath", opener], capture_output=True, text=True, check=True).stdout
    assert runpath.strip() == f"{tmp_path}/other/lib:/run/driver"


@needs_patchelf
def test_auto_patchelf_refuses_a_library_whose_needs_are_missing(opener, tmp_path):
    result = patched(
        tmp_path / "out", buildInputs=str(tmp_path / "other"), autoPatchelfIgnoreMissingDeps="libcuda.so.1"
    )
    assert result.returncode == 1
    assert result.stderr == f"auto-patchelf: {opener}: expected libmissing.so.1 in $out or buildInputs, got none\n"
