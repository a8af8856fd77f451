"""Times Nix on the flake, with nix/host: evaluation, no-op builds, and a cold build against `devtool build`.

python benchmarks/bench_nix.py [--cold] [--nixpkgs FOLDER]

--cold: cold builds too. --nixpkgs: times the evaluation alone, with the nixpkgs in FOLDER.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from devtool.release import nix

ROOT = Path(__file__).resolve().parent.parent
SYSTEM = "x86_64-linux"
ENVIRONMENT = nix._environment(True)


def timed(command: list[str], cwd: Path, runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(command, cwd=cwd, env=ENVIRONMENT, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def checkout(place: Path) -> Path:
    """A copy of the files that git knows: what else is here would be copied to the store and hashed each time."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    nix._write_host_tools(place / "nix/host/toolchain.json")
    return place


def add_ops(tree: Path, count: int, nonce: str) -> None:
    """Copies rms_norm under other names until there are `count` ops; the nonce makes all of them new to Nix."""
    shared = tree / "pyxla/include/pyxla/ffi/op_table.h"
    shared.write_text(f"{shared.read_text()}// {nonce}\n")
    for i in range(count - len(list((tree / "kernels").glob("*/*_ffi.cc")))):
        folder = tree / f"kernels/norm_{i}"
        folder.mkdir()
        for source in (ROOT / "kernels/rms_norm").iterdir():
            if source.suffix in (".h", ".cc", ".cu"):
                name = source.name.replace("rms_norm", folder.name)
                (folder / name).write_text(re.sub("rms_norm", folder.name, source.read_text()))
    subprocess.run(["git", "init", "--quiet"], cwd=tree, check=True)
    subprocess.run(["git", "add", "--all", "--force"], cwd=tree, check=True)


def stand_in(tree: Path, *words: str) -> list[str]:
    place = [f"path:{tree}/nix/host", "--no-write-lock-file"]
    return ["nix", words[0], "--override-input", "nixpkgs", *place, *words[1:]]


def evaluation(nixpkgs: str | None) -> float:
    """Seconds to evaluate the derivations of 100 ops."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = checkout(Path(scratch) / "hundred")
        add_ops(tree, 100, "evaluation")
        apply = ["--apply", "builtins.mapAttrs (_: package: package.drvPath)", "--option", "eval-cache", "false"]
        command = stand_in(tree, "eval", "--json", f".#packages.{SYSTEM}", *apply)
        place = command.index(f"path:{tree}/nix/host")
        command[place] = f"path:{nixpkgs}" if nixpkgs else command[place]
        return timed(command, tree, 5)


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--nixpkgs")
    options = parser.parse_args()
    rows = [("evaluate 100 ops", 6.0 if options.nixpkgs else 0.5, evaluation(options.nixpkgs))]
    if not options.nixpkgs:
        rows += stand_in_rows(options.cold)
    for name, limit, figure in rows:
        print(f"{name:52} {figure:7.3f}   (at most {limit})")


def stand_in_rows(cold: bool) -> list[tuple[str, float, float]]:
    rows = []
    subprocess.run(stand_in(ROOT, "build", "--no-link", ".#rms_norm"), cwd=ROOT, env=ENVIRONMENT, check=True)
    rows.append(("nix build, nothing to do", 0.3, timed(stand_in(ROOT, "build", "--no-link", ".#rms_norm"), ROOT, 9)))
    inside = stand_in(ROOT, "develop", ".#cpu", "-c", "devtool", "--help")
    subprocess.run(inside, cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True)
    rows.append(("nix develop -c devtool --help, warm", 1.0, timed(inside, ROOT, 5)))

    if cold:
        for cuda in ("off", "on"):
            with tempfile.TemporaryDirectory() as scratch:
                tree = checkout(Path(scratch) / "twenty")
                add_ops(tree, 20, str(time.time()))
                package = ".#default" if cuda == "on" else ".#cpu.default"
                name = "toolchain" if cuda == "on" else "cpu.toolchain"
                # Both sides have the compilers and CMake already.
                subprocess.run(
                    stand_in(tree, "build", "--no-link", f".#legacyPackages.{SYSTEM}.{name}"),
                    cwd=tree, env=ENVIRONMENT, check=True,
                )  # fmt: skip
                by_nix = timed(stand_in(tree, "build", "--no-link", package), tree, 1)
                environment = {**os.environ, "PYTHONPATH": str(tree)}
                start = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-m", "devtool", "build", "--clean", "--cuda", cuda],
                    cwd=tree, env=environment, check=True, capture_output=True,
                )  # fmt: skip
                by_devtool = time.perf_counter() - start
                rows.append((f"20 ops and release cold, CUDA {cuda}: nix / devtool", 1.2, by_nix / by_devtool))
                print(f"CUDA {cuda}: nix {by_nix:.1f} s, devtool build {by_devtool:.1f} s", file=sys.stderr)
    return rows


if __name__ == "__main__":
    main()
