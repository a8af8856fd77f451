"""Times a repository of one's own with 50 ops, and `import torch_xla` beside three installed packages of 20 ops.

python benchmarks/bench_own_repository.py [FOLDER]

All ops are built without CUDA code, which takes minutes. FOLDER keeps the repositories for the next run.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from paired import paired

ENVIRONMENT = os.environ | {"PYXLA_CUDA": "off", "PJRT_DEVICE": "CPU"}
IMPORT = "import time, torch; t = time.perf_counter(); import torch_xla; print(time.perf_counter() - t)"


def devtool(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "devtool", *arguments]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout


def repository(folder: Path, name: str, count: int) -> Path:
    """A built repository with `count` ops."""
    root = folder / name
    if not root.is_dir():
        devtool(folder, "init", name)
    for number in range(len(devtool(root, "list", "--json").splitlines()), count):
        devtool(root, "new-op", f"op_{number}")
    devtool(root, "build")
    return root


def installed(folder: Path, roots: list[Path]) -> list[str]:
    """A folder for PYTHONPATH for each repository, with its wheel as pip installs it."""
    sites = []
    for root in roots:
        site = folder / f"site-{root.name}"
        wheel = root / devtool(root, "wheel").strip()
        options = ("--no-deps", "--no-index", "--quiet", "--upgrade", "--target", site)
        subprocess.run([sys.executable, "-m", "pip", "install", *options, wheel], check=True)
        # pip compiles what it installs.
        sites.append(str(site))
    return sites


def import_seconds(sites: list[str]) -> float:
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sites)}
    return float(subprocess.check_output([sys.executable, "-P", "-c", IMPORT], env=environment, text=True))


def timed(call: Callable[[], object], runs: int) -> list[float]:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def edit_and_test(root: Path, file: str) -> None:
    path = root / "kernels/op_7" / file
    path.write_text(f"{path.read_text()}// edit\n")
    devtool(root, "test", "op_7")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        folder.mkdir(exist_ok=True)
        root = repository(folder, "fifty", 50)
        rows = [
            ("devtool build, nothing to do", 0.5, timed(lambda: devtool(root, "build"), 9)),
            ("devtool list", 0.3, timed(lambda: devtool(root, "list"), 9)),
            ("op_7_host.cc edited, devtool test", 8.0, timed(lambda: edit_and_test(root, "op_7_host.cc"), 5)),
            ("op_7_ffi.cc edited, devtool test", 8.0, timed(lambda: edit_and_test(root, "op_7_ffi.cc"), 5)),
        ]
        sites = installed(folder, [repository(folder, f"twenty-{letter}", 20) for letter in "abc"])
        imports = {"none": [], "three": []}
        paired(
            {
                "none": lambda: imports["none"].append(import_seconds([])),
                "three": lambda: imports["three"].append(import_seconds(sites)),
            },
            rounds=9,
            warm_up=2,
        )
        more = [three - none for none, three in zip(imports["none"][2:], imports["three"][2:], strict=True)]
        rows.append(("import torch_xla, three packages more", 0.15, more))
    print(f"{'':40} {'median':>8} {'least':>8} {'most':>8} {'asked':>8}   (seconds)")
    for name, asked, times in rows:
        print(f"{name:40} {statistics.median(times):8.3f} {min(times):8.3f} {max(times):8.3f} {asked:8.2f}")


if __name__ == "__main__":
    main()
