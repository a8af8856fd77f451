"""A copy of the flake for tests that change it."""

import json
import shutil
import subprocess
from pathlib import Path

from devtool.release import nix
from tests.conftest import ROOT

SYSTEMS = ("x86_64-linux", "aarch64-linux")


class Flake:
    """A copy of the checkout's flake, known to git."""

    def __init__(self, root: Path):
        self.root = root
        for name in ("flake.nix", "flake.lock", "pyproject.toml", "LICENSE", "nix", "kernels", "pyxla", "templates"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, root / name)
        nix._write_host_tools(root / "nix/host/toolchain.json")
        self.git("init", "--quiet")
        self.add()

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", "-C", self.root, *arguments], check=True)

    def add(self) -> None:
        self.git("add", "--all")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.add()

    def nix(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
        place = 2 if arguments[0] == "flake" else 1
        stand_in = ["--override-input", "nixpkgs", f"path:{self.root}/nix/host", "--no-write-lock-file"]
        command = ["nix", *arguments[:place], *stand_in, *arguments[place:]]
        return subprocess.run(
            command, cwd=cwd or self.root, env=nix._environment(True), capture_output=True, text=True, check=False
        )

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
