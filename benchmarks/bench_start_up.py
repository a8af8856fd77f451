"""Time from a new process to its first result and to its end, with and without the preparation by `import torch`.

python benchmarks/bench_start_up.py
"""

import os
import statistics
import subprocess
import sys
import time

from paired import ratio

ROUNDS = 7
ONES = "torch.ones(8, device=torch_xla.device())"
SCRIPTS = {
    "eager": f"import torch, torch_xla\nprint(({ONES} + 1).cpu().sum().item(), flush=True)",
    "torch.compile": (
        "import torch, torch_xla\nadd = torch.compile(lambda x: x + 1, backend='openxla')\n"
        f"print(add({ONES}).cpu().sum().item(), flush=True)"
    ),
}


def start_up(script: str, **environment: str) -> tuple[float, float]:
    """Seconds from a new process to its first result, which is 16, and to its end."""
    env = {**os.environ, **environment}
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True) as process:
        result = process.stdout.readline()
        first = time.perf_counter() - start
    assert result == "16.0\n" and process.returncode == 0, result
    return first, time.perf_counter() - start


def main() -> None:
    """Runs on the CPU: without the preparation torch_xla does not load where torch sees a GPU."""
    sides = {"with": {}, "without": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}}
    for name, script in SCRIPTS.items():
        # The first runs fill the file cache.
        runs = [[start_up(script, PJRT_DEVICE="CPU", **side) for side in sides.values()] for _ in range(ROUNDS + 1)][1:]
        for number, what in enumerate(("first result", "end of the process")):
            times = {side: [run[index][number] for run in runs] for index, side in enumerate(sides)}
            middle, low, high = ratio(times, "with", "without")
            ours, theirs = (statistics.median(times[side]) for side in sides)
            print(f"{name}, {what}: {ours:.2f} s, without {theirs:.2f} s, ratio {middle:.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
