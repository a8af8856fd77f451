"""`devtool nix`: which nix and which nixpkgs it uses."""

import os
import shutil
import subprocess
import sys

import pytest

from devtool.errors import DevtoolError
from devtool.release import nix
from tests.conftest import ROOT

needs_nix = pytest.mark.skipif(shutil.which("nix") is None, reason="needs nix: apt-get install nix-bin")


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


@pytest.mark.parametrize(
    ("words", "host", "want"),
    [
        (["build", ".#rms_norm"], True, ["build", "--override-input", "nixpkgs", "path:ROOT/nix/host",
                                         "--no-write-lock-file", ".#rms_norm"]),
        (["build", ".#rms_norm"], False, ["build", ".#rms_norm"]),
        (["check", "-L"], True, ["flake", "check", "--override-input", "nixpkgs", "path:ROOT/nix/host",
                                 "--no-write-lock-file", "-L"]),
        (["check"], False, ["flake", "check"]),
        (["flake", "show"], True, ["flake", "show", "--override-input", "nixpkgs", "path:ROOT/nix/host",
                                   "--no-write-lock-file"]),
        (["store", "gc"], True, ["store", "gc"]),
    ],
)  # fmt: skip
def test_stand_in_takes_the_place_of_nixpkgs(words, host, want):
    assert nix.with_nixpkgs(words, host) == [word.replace("ROOT", str(ROOT)) for word in want]


@needs_nix
def test_devtool_nix_says_which_nixpkgs_it_takes():
    command = [sys.executable, "-P", "-m", "devtool", "nix", "--nixpkgs", "host", "eval", "--raw", ".#rms_norm.name"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stdout.startswith("pyxla-rms_norm-"), result.stderr
    assert "nix: nixpkgs: nix/host, the stand-in for it\n" in result.stderr
