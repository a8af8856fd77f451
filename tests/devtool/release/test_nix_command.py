"""`devtool nix`: which nix and which nixpkgs it uses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devtool.errors import DevtoolError
from devtool.release import nix
from tests.conftest import ROOT

needs_nix = pytest.mark.skipif(shutil.which("nix") is None, reason="needs nix: apt-get install nix-bin")
needs_host_tools = pytest.mark.skipif(
    bool(nix.missing_host_tools()), reason=f"needs {' '.join(nix.missing_host_tools())}: {nix.HOST_TOOLS_HINT}"
)

# Nix with or without a network: logs its arguments and settings. As newer versions do, it names the steps first.
FAKE = """#!/bin/sh
case "$*" in
  --version) echo "nix (Nix) 2.18.1"; exit;;
  eval*getFlake*) test -e "$(dirname "$0")/network" && exit
    printf 'error: cannot fetch the input\\n\\n       error: unable to download: no route\\n' >&2; exit 1;;
esac
printf '%s\\n' "$@" >"$(dirname "$0")/arguments"
printf '%s\\n' "$NIX_CONFIG" >"$(dirname "$0")/settings"
"""


class Machine:
    """A machine with Nix, without a network.

    Attributes:
        folder: where `devtool nix` is called.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "nix").write_text(FAKE)
        (folder / "nix").chmod(0o755)

    def connect(self) -> None:
        """Gives the machine a network."""
        (self.folder / "network").touch()

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        """Runs `devtool nix`."""
        for name in ("arguments", "settings"):
            (self.folder / name).unlink(missing_ok=True)
        kept = {name: value for name, value in os.environ.items() if name not in ("PYXLA_NIXPKGS", "NIX_CONFIG")}
        paths = {"PATH": f"{self.folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-P", "-m", "devtool", "nix", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=kept | paths | environment, capture_output=True, text=True, check=False
        )

    def nixpkgs(self) -> str | None:
        """What Nix was told to take as nixpkgs; "pinned" without a word about it, None if Nix did not run."""
        if not (self.folder / "arguments").exists():
            return None
        words = (self.folder / "arguments").read_text().splitlines()
        if "--override-input" not in words:
            return "pinned"
        place = words.index("--override-input")
        assert words[place + 1] == "nixpkgs" and words[place + 3] == "--no-write-lock-file"
        return words[place + 2]

    def has_sandbox(self) -> bool:
        """Whether Nix runs with the user's settings of sandbox and caches."""
        settings = (self.folder / "settings").read_text()
        assert ("sandbox = false" in settings) == ("substituters =" in settings)
        return "sandbox = false" not in settings


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_no_nix(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        DevtoolError, match="nix: command: expected nix on PATH, got none\n\nhint: apt-get install nix-bin"
    ):
        nix.run_nix(["build"], "host")


def test_old_nix(monkeypatch, tmp_path):
    (tmp_path / "nix").write_text("#!/bin/sh\necho 'nix (Nix) 2.3.16'\n")
    (tmp_path / "nix").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(DevtoolError, match=r"nix: version: expected 2\.8 or newer, got nix \(Nix\) 2\.3\.16"):
        nix.run_nix(["build"], "host")


STAND_IN = f"path:{ROOT / 'nix/host'}"


@pytest.mark.parametrize(
    ("words", "reference", "want"),
    [
        (["build", ".#rms_norm"], "flake:x", ["build", "OTHER", ".#rms_norm"]),
        (["build", ".#rms_norm"], None, ["build", ".#rms_norm"]),
        (["check", "-L"], "flake:x", ["flake", "check", "OTHER", "-L"]),
        (["check"], None, ["flake", "check"]),
        (["flake", "show"], "flake:x", ["flake", "show", "OTHER"]),
        (["store", "gc"], "flake:x", ["store", "gc"]),
    ],
)
def test_another_flake_takes_the_place_of_nixpkgs(words, reference, want):
    other = " ".join(want).replace("OTHER", "--override-input nixpkgs flake:x --no-write-lock-file")
    assert nix.with_nixpkgs(words, reference) == other.split()


def test_stand_in_needs_the_tools_of_the_machine(monkeypatch, tmp_path):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool, **where: None if tool == "patchelf" else which(tool, **where))
    with pytest.raises(DevtoolError) as error:
        nix._write_host_tools(tmp_path / "toolchain.json")
    assert error.value.message == (
        "nix: nix/host: expected patchelf in /usr/bin, got none\n\n"
        "hint: apt-get install g++ binutils tar gzip xxd patchelf"
    )


@needs_nix
def test_devtool_nix_says_which_nixpkgs_it_takes():
    command = [sys.executable, "-P", "-m", "devtool", "nix", "--nixpkgs", "host", "eval", "--raw", ".#rms_norm.name"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stdout.startswith("pyxla-rms_norm-"), result.stderr
    assert "nix: nixpkgs: nix/host, the stand-in for it\n" in result.stderr


def test_pinned_nixpkgs_that_can_be_had(machine):
    machine.connect()
    assert machine.run("build").stderr == "nix: nixpkgs: the pinned one\n"
    assert machine.nixpkgs() == "pinned" and machine.has_sandbox()


@needs_host_tools
def test_pinned_nixpkgs_that_cannot_be_had(machine):
    """The stand-in takes its place, except in a release, and a message says why."""
    result = machine.run("build", "-o", "result-1", ".#rms_norm")
    why = "unable to download: no route"
    assert result.stderr == f"nix: nixpkgs: nix/host, the stand-in for it, as the pinned one cannot be had ({why})\n"
    assert machine.nixpkgs() == STAND_IN and not machine.has_sandbox()
    result = machine.run("build", ".#wheel", "-L")
    assert (result.returncode, machine.nixpkgs()) == (1, None)
    assert result.stderr == (
        f"nix: nixpkgs: expected the pinned one for a release, got none ({why})\n\n"
        "hint: devtool nix --nixpkgs host build '.#wheel' -L makes one with this machine's compiler, and the manifest "
        "says so\n"
    )


@needs_host_tools
def test_release_with_the_stand_in_if_asked(machine):
    for options, environment in ((["--nixpkgs", "host"], {}), ([], {"PYXLA_NIXPKGS": "host"})):
        assert machine.run(*options, "build", **environment).stderr == "nix: nixpkgs: nix/host, the stand-in for it\n"
        assert machine.nixpkgs() == STAND_IN and not machine.has_sandbox()


def test_names_of_what_is_released():
    system = "x86_64-linux"
    released = [
        *("", ".", ".#", "#wheel", ".#default", ".#wheel", ".#cpu.default", ".#cpu.wheel", ".#wheel^*", str(ROOT)),
        *(f".#packages.{system}.default", f".#packages.{system}.wheel", f".#legacyPackages.{system}.cpu.default"),
        *(f".#hydraJobs.packages.{system}.wheel", f"path:{ROOT}#wheel", f"git+file://{ROOT}?ref=main#default"),
        *("-o out", "--no-link --print-build-logs", ".#rms_norm .", ".#rms_norm .#wheel", "-L .#wheel -o out"),
    ]
    others = [
        *(".#rms_norm", ".#cpu.rms_norm", ".#docs", ".#python", f".#packages.{system}.rms_norm", ".#wheel_op"),
        *("nixpkgs#default", "/other#wheel", "-o out .#rms_norm", "--expr 1", "-f x.nix", "/nix/store/x.drv"),
    ]
    found = {words for words in (*released, *others) if nix.makes_release(["build", *words.split()])}
    assert found == set(released)
    assert not any(nix.makes_release([command, "."]) for command in ("develop", "run", "check", "eval"))


def test_nixpkgs_by_a_reference(machine):
    """Relative paths are those of the user's folder; Nix runs in the checkout's."""
    here = machine.folder
    (here / "pkgs").mkdir()
    references = {
        "github:NixOS/nixpkgs/nixos-25.11": "github:NixOS/nixpkgs/nixos-25.11",
        "flake:nixpkgs": "flake:nixpkgs",
        "nixpkgs/nixos-25.11": "nixpkgs/nixos-25.11",
        "path:pkgs": f"path:{here}/pkgs",
        "path:./pkgs?dir=flake": f"path:{here}/pkgs?dir=flake",
        "./pkgs": f"{here}/pkgs",
        f"{here}/pkgs": f"{here}/pkgs",
        "git+file:pkgs?ref=main": f"git+file:{here}/pkgs?ref=main",
        f"git+file://{here}/pkgs": f"git+file://{here}/pkgs",
    }
    for reference, want in references.items():
        assert machine.run("--nixpkgs", reference, "build").stderr == f"nix: nixpkgs: {want}\n"
        assert machine.nixpkgs() == want and machine.has_sandbox()


@pytest.mark.parametrize("reference", ["path:gone", "./gone", "git+file:gone?ref=main", "path:file"])
def test_folder_of_nixpkgs_that_does_not_exist(machine, reference):
    (machine.folder / "file").touch()
    result = machine.run("--nixpkgs", reference, "build")
    path = machine.folder / ("file" if "file" in reference.partition(":")[2] else "gone")
    assert (result.returncode, machine.nixpkgs()) == (2, None)
    assert result.stderr.startswith(f"nix: --nixpkgs: expected the folder of a flake, got none at {path}\n\nhint: ")
