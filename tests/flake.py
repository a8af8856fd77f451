"""A copy of the flake for tests that change it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

from devtool.release import nix
from tests.conftest import ROOT

SYSTEMS = ("x86_64-linux", "aarch64-linux")
# What the flake is evaluated from.
_PARTS = ("flake.nix", "flake.lock", "pyproject.toml", "LICENSE", "nix", "kernels", "pyxla", "templates")


class Flake:
    """A copy of the checkout's flake, known to git.

    Args:
        root: a new folder.
        whole: copy all files that git knows, so that `nix develop` works in the copy.
        nixpkgs: the folder that takes the place of nixpkgs; by default the copy's nix/host.
        settings: lines of nix.conf.
    """

    def __init__(self, root: Path, whole: bool = False, nixpkgs: Path | None = None, settings: str = ""):
        self.root = root
        self.nixpkgs = nixpkgs
        self.settings = settings
        for name in tracked_files() if whole else _PARTS:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, root / name)
        nix._write_host_tools(root / "nix/host/toolchain.json")
        self.git("init", "--quiet")
        self.add()

    def copy(self, root: Path) -> "Flake":
        """Another copy."""
        shutil.copytree(self.root, root, symlinks=True, ignore=shutil.ignore_patterns("build"))
        copied = object.__new__(Flake)
        copied.__dict__ |= self.__dict__ | {"root": root}
        return copied

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", "-C", self.root, *arguments], check=True)

    def add(self) -> None:
        self.git("add", "--all")
        self.git("add", "--force", "nix/host/toolchain.json")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.add()

    def nix(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
        folder = cwd or self.root
        place = 2 if arguments[0] == "flake" else 1
        # A repository made from the template has nixpkgs through its pyxla.
        name = "nixpkgs" if folder == self.root else "pyxla/nixpkgs"
        options = ["--override-input", name, f"path:{self.nixpkgs or self.root / 'nix/host'}", "--no-write-lock-file"]
        command = ["nix", *arguments[:place], *options, *arguments[place:]]
        env = nix._environment(self.nixpkgs is None)
        env["NIX_CONFIG"] += "\n" + self.settings
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)

    def repository_from_template(self, folder: Path) -> Path:
        """A repository made by `nix flake init -t`, whose pyxla is this flake."""
        folder.mkdir()
        command = ["nix", "flake", "init", "-t", f"git+file://{self.root}#kernel"]
        subprocess.run(command, cwd=folder, env=nix._environment(True), check=True)
        path = folder / "flake.nix"
        address = f'inputs.pyxla.url = "git+file://{self.root}"'
        path.write_text(re.sub(r'inputs\.pyxla\.url = ".*"', address, path.read_text()))
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
        subprocess.run(["git", "add", "."], cwd=folder, check=True)
        return folder

    def value(self, attribute: str, apply: str | None = None):
        result = self.nix("eval", "--json", f".#{attribute}", *(("--apply", apply) if apply else ()))
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def derivations(self, system: str = SYSTEMS[0]) -> dict[str, str]:
        return self.value(f"packages.{system}", "builtins.mapAttrs (_: package: package.drvPath)")

    def error(self, attribute: str = f"packages.{SYSTEMS[0]}.default.drvPath") -> str:
        result = self.nix("eval", "--raw", f".#{attribute}")
        assert result.returncode == 1
        return result.stderr


def tracked_files() -> list[str]:
    """The files of the checkout that git knows and that exist, relative to its root."""
    command = ["git", "-C", ROOT, "ls-files", "-z"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in names if (ROOT / name).is_file()]
