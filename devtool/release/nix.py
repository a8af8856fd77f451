"""Runs Nix on the flake: with the nixpkgs that flake.lock pins, with nix/host, or with one that the user names."""

from __future__ import annotations

import ctypes.util
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from devtool import project
from devtool.errors import MISUSED, DevtoolError

HOST_TOOLS_HINT = "apt-get install g++ binutils tar gzip xxd patchelf"
# The first version with flakes in their present form.
_OLDEST = (2, 8)
# Commands that take a flake; the others get no extra option. `check` is `flake check`.
_FLAKE_COMMANDS = ("build", "develop", "run", "shell", "eval", "fmt", "bundle", "path-info", "log")
# A host that is up answers at once; the download itself has no time limit.
_PROBE_OPTIONS = ("--option", "connect-timeout", "5", "--option", "download-attempts", "1")
# The packages that are released, by all names that the flake gives them.
_RELEASED = re.compile(r"(hydraJobs\.)?((p|legacyP)ackages\.[^.]+\.)?(cpu\.)?(default|wheel)?(\^.*)?")
# The kinds of flake references to a folder: as in Nix, a path without a kind starts with a dot or a slash.
_FOLDER = re.compile(r"(?P<kind>path:|git\+file:(?://)?|(?=[./]))(?P<path>[^?#]*)(?P<rest>.*)")


def run_nix(arguments: Sequence[str], nixpkgs: str) -> NoReturn:
    """Replaces this process by `nix <arguments>` on this checkout's flake.

    Args:
        arguments: Nix's arguments; the first is its command.
        nixpkgs: "pinned", "host", a flake reference, or "auto": the pinned one if it is available, else nix/host.

    Raises:
        DevtoolError: Nix is missing or too old, git does not track an op folder, the folder of nixpkgs or a tool for
            the stand-in is missing, or a release cannot have the pinned nixpkgs.
    """
    project.checkout("nix")
    nix = _require_nix()
    _require_known_folders()
    why = ""
    if nixpkgs == "auto":
        problem = _problem_of_pinned(nix)
        if problem and makes_release(arguments):
            raise DevtoolError(
                f"nix: nixpkgs: expected the pinned one for a release, got none ({problem})",
                f"devtool nix --nixpkgs host {shlex.join(arguments)} makes one with this machine's compiler, and the "
                "manifest says so",
            )
        nixpkgs, why = ("host", f", as the pinned one cannot be had ({problem})") if problem else ("pinned", "")
    host, reference = nixpkgs == "host", None
    if host:
        _write_host_tools(project.root() / "nix/host/toolchain.json")
        reference, taken = f"path:{project.root() / 'nix/host'}", f"nix/host, the stand-in for it{why}"
    elif nixpkgs == "pinned":
        taken = "the pinned one"
    else:
        reference = taken = absolute_reference(nixpkgs)
    click.echo(f"nix: nixpkgs: {taken}", err=True)
    os.chdir(project.root())
    os.execve(nix, [nix, *with_nixpkgs(arguments, reference)], _environment(host))


def with_nixpkgs(arguments: Sequence[str], reference: str | None) -> list[str]:
    """Nix's arguments, with options that replace nixpkgs by another flake; None keeps the pinned one."""
    words = ["flake", "check", *arguments[1:]] if arguments[0] == "check" else list(arguments)
    place = 2 if words[0] == "flake" else 1
    if reference is None or words[0] not in (*_FLAKE_COMMANDS, "flake"):
        return words
    return [*words[:place], "--override-input", "nixpkgs", reference, "--no-write-lock-file", *words[place:]]


def absolute_reference(reference: str) -> str:
    """A flake reference that means the same in another working directory.

    Raises:
        DevtoolError: it names a folder that does not exist.
    """
    match = _FOLDER.fullmatch(reference)
    if match is None:
        return reference
    path = Path(match["path"]).absolute()
    if not path.is_dir():
        raise DevtoolError(
            f"nix: --nixpkgs: expected the folder of a flake, got none at {path}",
            "name one that exists, or a reference such as github:NixOS/nixpkgs/nixos-25.11",
            MISUSED,
        )
    return f"{match['kind']}{path}{match['rest']}"


def makes_release(arguments: Sequence[str]) -> bool:
    """Whether these arguments of Nix build what is released: the release or the wheel, with or without CUDA code."""
    if arguments[0] != "build":
        return False
    # A word without # may also be the value of an option.
    named = [word for word in arguments[1:] if "#" in word or word.startswith("/nix/store/")]
    others = {"--expr", "--file", "-f"}.intersection(arguments)
    return not (named or others) or any(map(_is_released, arguments[1:]))


def _is_released(installable: str) -> bool:
    flake, _, attribute = installable.partition("#")
    folder = re.sub(r"^(path|git\+file):(//)?|\?.*", "", flake)
    here = (project.root() / folder).resolve() == project.root().resolve()
    return here and _RELEASED.fullmatch(attribute) is not None


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


def _problem_of_pinned(nix: str) -> str:
    """Why the pinned nixpkgs cannot be had, in Nix's words; empty if it can."""
    locked = json.loads((project.root() / "flake.lock").read_text())["nodes"]["nixpkgs"]["locked"]
    flake = f"{locked['type']}:{locked['owner']}/{locked['repo']}/{locked['rev']}?narHash={locked['narHash']}"
    command = [nix, "eval", *_PROBE_OPTIONS, "--impure", "--expr", f'(builtins.getFlake "{flake}").lib.version']
    probe = subprocess.run(command, capture_output=True, text=True, env=_environment(False))
    if probe.returncode == 0:
        return ""
    # Newer versions begin with the steps that led to the error.
    errors = re.findall(r"^ *error: *(\S.*)", probe.stderr, re.MULTILINE)
    return errors[-1] if errors else f"nix eval ended with exit status {probe.returncode}"


def _environment(host: bool) -> dict[str, str]:
    """The environment, with settings that Nix needs for flakes and for root; the user's NIX_CONFIG overrides them."""
    settings = ["extra-experimental-features = nix-command flakes", "max-jobs = auto", "warn-dirty = false"]
    if host:
        # The tools of /usr are outside every sandbox, and no cache has what they build.
        settings += ["sandbox = false", "substituters ="]
    if os.geteuid() == 0 and not Path("/nix/var/nix/daemon-socket/socket").exists():
        settings.append("build-users-group =")
    return {**os.environ, "NIX_CONFIG": "\n".join([*settings, os.environ.get("NIX_CONFIG", "")])}


def missing_host_tools() -> list[str]:
    """The programs that nix/host takes from this machine and that are not there."""
    tools = ("bash", "g++", "ld", "tar", "gzip", "xxd", "patchelf")
    return [tool for tool in tools if shutil.which(tool, path="/usr/local/bin:/usr/bin:/bin") is None]


def _write_host_tools(path: Path) -> None:
    """Writes what nix/host takes from this machine, but only if it changed, so that Nix need not evaluate again."""
    if missing := missing_host_tools():
        raise DevtoolError(f"nix: nix/host: expected {missing[0]} in /usr/bin, got none", HOST_TOOLS_HINT)
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
