"""The flake on nixpkgs' own code, for who changes nix/: CI has the stand-in alone.

python -m tests.outside.test_nixpkgs FOLDER

FOLDER holds two flakes with the outputs of nixpkgs': `evaluate`, in which all of nixpkgs' code that pyxla's flake uses
evaluates, on both systems, and `native`, which builds: nixpkgs' setup.sh, compiler wrappers and auto-patchelf around
this machine's GCC. Everything is built in a sandbox; all ops are compiled four times.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.flake import SYSTEMS, Flake

_VARIABLE = "PYXLA_NIXPKGS_FOLDER"
_FOLDER = Path(os.environ.get(_VARIABLE, "/nonexistent"))
# What `native` takes from the machine, and what a download needs.
_SANDBOX = "sandbox = true\nsandbox-paths = /bin /usr /lib /lib64 /etc/alternatives /etc/ssl " + sys.base_prefix

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _FOLDER.is_dir(), reason=f"needs a folder with nixpkgs' own code: set {_VARIABLE}"),
    pytest.mark.skipif(shutil.which("nix") is None, reason="needs nix: apt-get install nix-bin"),
]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    return Flake(tmp_path_factory.mktemp("evaluate"), whole=True, nixpkgs=_FOLDER / "evaluate")


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    return Flake(tmp_path_factory.mktemp("native"), whole=True, nixpkgs=_FOLDER / "native", settings=_SANDBOX)


def digests(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of the ops' libraries in a folder."""
    names = sorted(path.name for path in folder.glob("lib*.so"))
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def run(flake: Flake, *arguments: str, cwd: Path | None = None) -> str:
    for _ in range(5):
        result = flake.nix(*arguments, cwd=cwd)
        if "failed due to signal 9" not in result.stderr:  # old versions of Nix lose a build in the sandbox at times
            break
    assert result.returncode == 0, result.stderr[-5000:]
    return result.stdout


def test_all_outputs_evaluate(evaluated):
    shown = re.sub(r"\x1b\[[\d;]*m", "", run(evaluated, "flake", "show"))
    assert all(name in shown for name in ("rms_norm", "overlays", "Nixpkgs overlay", "template", *SYSTEMS))
    run(evaluated, "flake", "check", "--no-build")
    for system in SYSTEMS:
        for output in ("packages", "checks", "devShells", "hydraJobs.packages", "hydraJobs.checks"):
            attribute = f"{output}.{system}"
            assert all(evaluated.value(attribute, "builtins.mapAttrs (_: drv: drv.drvPath)").values()), attribute


def test_template_evaluates(evaluated, tmp_path):
    mine = evaluated.repository_from_template(tmp_path / "mine")
    for output in ("packages.x86_64-linux", "packages.aarch64-linux", "checks.x86_64-linux"):
        apply = "builtins.mapAttrs (_: drv: drv.drvPath)"
        assert json.loads(run(evaluated, "eval", "--json", f"{mine}#{output}", "--apply", apply, cwd=mine))


def test_same_bytes_of_all_ops(native, tmp_path):
    """`nix build`, `nix develop -c devtool build`, the stand-in, and `devtool build` outside Nix."""
    run(native, "build", "-o", str(tmp_path / "native"), ".#default")
    by_nix = digests(tmp_path / "native/lib")
    assert len(by_nix) >= 12

    run(native, "develop", "-c", "devtool", "build")
    assert digests(native.root / "build/lib") == by_nix
    shutil.rmtree(native.root / "build")

    host = Flake(tmp_path / "host", whole=True)
    run(host, "build", "-o", str(tmp_path / "stand-in"), ".#default")
    assert digests(tmp_path / "stand-in/lib") == by_nix

    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, "-P", "-m", "devtool", "build", "--cuda", "on"]
    subprocess.run(command, cwd=host.root, env=environment | {"PYTHONPATH": str(host.root)}, check=True)
    assert digests(host.root / "build/lib") == by_nix


def test_all_checks_pass_in_the_sandbox(native):
    """Formatting, pages, libraries, the ops' tests, the scaffold, the template, and an op in `.#cpu.python`."""
    run(native, "flake", "check", "-L")


def test_python_with_cuda_calls_an_op(native, tmp_path):
    run(native, "build", "-o", str(tmp_path / "python"), ".#python")
    command = [tmp_path / "python/bin/python", ROOT / "nix/check_python.py"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PJRT_DEVICE": "CPU"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "rms_norm is right on" in result.stdout


def test_template_builds_tests_and_releases_its_op(native, tmp_path):
    mine = native.repository_from_template(tmp_path / "mine")
    run(native, "build", "-o", str(tmp_path / "op"), f"{mine}#scaled", cwd=mine)
    assert list(digests(tmp_path / "op/lib")) == ["libscaled.so"]
    run(native, "flake", "check", "-L", str(mine), cwd=mine)
    run(native, "build", "-o", str(tmp_path / "release"), str(mine), cwd=mine)
    release = json.loads((tmp_path / "release/lib/manifest.json").read_text())
    assert [library["op"] for library in release["libraries"]] == ["scaled"]
    assert list((tmp_path / "release").glob("*.tar.gz"))


if __name__ == "__main__":
    os.environ[_VARIABLE] = str(Path(sys.argv[1]).resolve())
    sys.exit(pytest.main(["-v", "-rs", "-p", "no:cacheprovider", f"--rootdir={ROOT}", __file__, *sys.argv[2:]]))
