"""Times devtool's commands as whole processes, and what `import pyxla` adds; medians of several runs.

python benchmarks/bench_devtool.py [--cuda]
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable


def timed(command: list, runs: int, before=lambda: None) -> float:
    times = []
    for _ in range(runs):
        before()
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def import_time(runs: int) -> float:
    """Seconds that pyxla and its ops add to an `import torch_xla` without pyxla's entry point."""
    script = (
        "import time, os; os.environ['XLA_REGISTER_INSTALLED_PLUGINS'] = '0'; import torch, torch_xla;"
        "t = time.perf_counter(); import pyxla; print(time.perf_counter() - t)"
    )
    times = [float(subprocess.check_output([PYTHON, "-c", script], text=True)) for _ in range(runs)]
    return statistics.median(times)


def main() -> None:
    devtool = [str(ROOT / "bin/devtool")]
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("build", ".venv", ".git", "*.egg-info", ".gpu"))
        scaffold = tree / "kernels/bench_op"
        in_tree = [PYTHON, "-m", "devtool"]
        rows = [
            ("devtool --help", 0.2, timed([*devtool, "--help"], 9)),
            (
                "devtool new-op",
                0.5,
                timed(
                    ["env", "-C", str(tree), *in_tree, "new-op", "bench_op"],
                    5,
                    before=lambda: shutil.rmtree(scaffold, ignore_errors=True),
                ),
            ),
        ]
    subprocess.run([*devtool, "build"], check=True, capture_output=True)
    rows.append(("devtool build, nothing to do", 0.5, timed([*devtool, "build"], 9)))
    kinds = [("off", 6.0)] + ([("on", 40.0)] if "--cuda" in sys.argv else [])
    for cuda, limit in kinds:
        for op in ("simple_add", "rms_norm", "paged_attention"):
            command = [*devtool, "build", op, "--clean", "--cuda", cuda]
            rows.append((f"devtool build {op} --clean --cuda {cuda}", limit, timed(command, 3 if cuda == "off" else 1)))
    subprocess.run([*devtool, "build"], check=True, capture_output=True)
    rows.append(("import pyxla after torch_xla", 0.1, import_time(5)))
    for name, limit, seconds in rows:
        print(f"{name:48} {seconds:7.3f} s   (at most {limit} s)")


if __name__ == "__main__":
    main()
