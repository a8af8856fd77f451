"""Runs Nix on the flake: with the nixpkgs that flake.lock pins if it is available, else with nix/host."""

from __future__ import annotations

import ctypes.util
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from devtool import project
from devtool.errors import DevtoolError

# The first version with flakes in their present form.
_OLDEST = (2, 8)
# Commands that take a flake; the others get no extra option. `check` is `flake check`.
_FLAKE_COMMANDS = ("build", "develop", "run", "shell", "eval", "fmt", "bundle", "path-info", "log")
# A host that is up answers at once; the download itself has no time limit.
_PROBE_OPTIONS = ("--option", "connect-timeout", "5", "--option", "download-attempts", "1")


def run_nix(arguments: Sequence[str], nixpkgs: str) -> NoReturn:
    """Replaces this process by `nix <arguments>` on this checkout's flake.

    Args:
        arguments: Nix's arguments; the first is its command.
        nixpkgs: "pinned", "host", or "auto": the pinned one if it is available.

    Raises:
        DevtoolError: Nix is missing or too old, git does not track an op folder, or a tool for the stand-in is missing.
    """
    nix = _require_nix()
    _require_known_folders()
    host = nixpkgs == "host" or (nixpkgs == "auto" and not _can_have_pinned(nix))
    if host:
        _write_host_tools(project.root() / "nix/host/toolchain.json")
    click.echo(f"nix: nixpkgs: {'nix/host, the stand-in for it' if host else 'the pinned one'}", err=True)
    os.chdir(project.root())
    os.execve(nix, [nix, *with_nixpkgs(arguments, host)], _environment(host))


def with_nixpkgs(arguments: Sequence[str], host: bool) -> list[str]:
    """Nix's arguments, with options that replace nixpkgs by the stand-in if `host` is set."""
    words = ["flake", "check", *arguments[1:]] if arguments[0] == "check" else list(arguments)
    place = 2 if words[0] == "flake" else 1
    if not host or words[0] not in (*_FLAKE_COMMANDS, "flake"):
        return words
    stand_in = ["--override-input", "nixpkgs", f"path:{project.root() / 'nix/host'}", "--no-write-lock-file"]
    return [*words[:place], *stand_in, *words[place:]]


def _require_nix() -> str:
    nix = shutil.which("nix")
    if nix is None:
        raise DevtoolError("nix: command: expected nix on PATH, got none", "apt-get install nix-bin")
    said = subprocess.run([nix, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    if not version or tuple(map(int, version.groups())) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise DevtoolError(
            f"nix: version: expected {oldest} or newer, got {said.strip() or 'none'}", "install a newer Nix"
        )
    return nix


def _require_known_folders() -> None:
    """Refuses an op folder that git does not track: a flake does not see it."""
    command = ["git", "-C", str(project.root()), "ls-files", "--others", "--exclude-standard", "kernels"]
    others = subprocess.run(command, capture_output=True, text=True).stdout.split()
    unknown = sorted({Path(name).parts[1] for name in others if len(Path(name).parts) > 2})
    if unknown:
        paths = " ".join(f"kernels/{name}" for name in unknown)
        raise DevtoolError(f"nix: {paths}: expected files that git tracks, got untracked ones", f"git add -N {paths}")


def _can_have_pinned(nix: str) -> bool:
    locked = json.loads((project.root() / "flake.lock").read_text())["nodes"]["nixpkgs"]["locked"]
    flake = f"{locked['type']}:{locked['owner']}/{locked['repo']}/{locked['rev']}?narHash={locked['narHash']}"
    command = [nix, "eval", *_PROBE_OPTIONS, "--impure", "--expr", f'(builtins.getFlake "{flake}").lib.version']
    return subprocess.run(command, capture_output=True, env=_environment(False)).returncode == 0


def _environment(host: bool) -> dict[str, str]:
    """The environment, with settings that Nix needs for flakes and for root; the user's NIX_CONFIG overrides them."""
    settings = ["extra-experimental-features = nix-command flakes", "max-jobs = auto", "warn-dirty = false"]
    if host:
        # The tools of /usr are outside every sandbox, and no cache has what they build.
        settings += ["sandbox = false", "substituters ="]
    if os.geteuid() == 0 and not Path("/nix/var/nix/daemon-socket/socket").exists():
        settings.append("build-users-group =")
    return {**os.environ, "NIX_CONFIG": "\n".join([*settings, os.environ.get("NIX_CONFIG", "")])}


def _write_host_tools(path: Path) -> None:
    """Writes what nix/host takes from this machine, but only if it changed, so that Nix need not evaluate again."""
    for tool in ("bash", "g++", "ld", "tar", "gzip", "xxd"):
        if shutil.which(tool, path="/usr/local/bin:/usr/bin:/bin") is None:
            raise DevtoolError(
                f"nix: nix/host: expected {tool} in /usr/bin, got none", "apt-get install g++ binutils tar gzip xxd"
            )
    python = Path(sys._base_executable).resolve()
    asked = [["g++", "--version"], ["ld", "--version"], ["bash", "--version"], [str(python), "--version"]]
    said = [subprocess.run(command, capture_output=True, text=True).stdout for command in asked]
    tools = {
        "python": str(python),
        "pythonVersion": "{}.{}".format(*sys.version_info),
        # Any Python with pip: it only downloads wheels.
        "pip": sys.executable,
        "fingerprint": hashlib.sha256("\n".join([*said, ctypes.util.find_library("c") or ""]).encode()).hexdigest(),
    }
    text = json.dumps(tools, indent=2) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
