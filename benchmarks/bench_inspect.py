"""Times `devtool hlo OP` against a process that runs the op once, and what inspecting adds inside a process.

python benchmarks/bench_inspect.py [OP]... [--rounds N]
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

from paired import paired, ratio

RUN_ONCE = """
import os
os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch, torch_xla
from pyxla_kernels.{op}.cases import CASES
arguments = CASES[0].arguments()
device = torch_xla.device()
moved = {{n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}}
results = torch.ops.xla_gpu.{op}(**moved)
results = results if isinstance(results, (tuple, list)) else [results]
print([t.cpu().shape for t in results if t is not None])
"""

# A chain of 100 matrix products with a custom call between them: compiled without a dump, with one, and inspected.
IN_PROCESS = """
import statistics, time, torch, torch_xla, pyxla
from pyxla.hlo import dump
simple_add = torch.ops.xla_gpu.simple_add

def step(x, n):
    for _ in range(100):
        x = simple_add(x @ x, torch.nn.functional.gelu(x), 1e-3)
    return x * n

def timed(n, manager):
    x = torch.randn(64 + n, 64 + n, device=torch_xla.device())
    torch_xla.sync(wait=True)
    start = time.perf_counter()
    with manager:
        y = step(x, 1.0)
        torch_xla.sync(wait=True)
    return time.perf_counter() - start

import contextlib
timed(0, contextlib.nullcontext())
plain, dumped, looked = [], [], []
for n in range(1, 25, 3):
    plain.append(timed(n, contextlib.nullcontext()))
    dumped.append(timed(n + 1, dump.dumping()))
    looked.append(timed(n + 2, pyxla.inspecting(private=False)))
print(*map(statistics.median, (plain, dumped, looked)))
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ops", nargs="*", default=["simple_add", "rms_norm"])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    environment = os.environ | {"PJRT_DEVICE": os.environ.get("PJRT_DEVICE", "CPU")}

    def process(*command: str) -> None:
        subprocess.run([sys.executable, "-P", *command], check=True, capture_output=True, env=environment)

    for op in options.ops:
        process("-m", "devtool", "build", op)
        times = paired(
            {
                "once": lambda op=op: process("-c", RUN_ONCE.format(op=op)),
                "hlo": lambda op=op: process("-m", "devtool", "hlo", op),
            },
            rounds=options.rounds,
            warm_up=1,
        )
        once, hlo = (statistics.median(times[name]) for name in ("once", "hlo"))
        middle, low, high = ratio(times, "hlo", "once")
        print(
            f"{op:16} run once {once:6.2f} s   devtool hlo {hlo:6.2f} s   ratio {middle:.2f} ({low:.2f} to {high:.2f})"
        )

    start = time.perf_counter()
    process("-c", "import torch_xla; torch_xla.device()")
    child = time.perf_counter() - start
    output = subprocess.run([sys.executable, "-P", "-c", IN_PROCESS], check=True, capture_output=True, text=True)
    plain, dumped, looked = map(float, output.stdout.split())
    print(f"compile and run once, 400 operations: {plain * 1e3:.0f} ms; files written {dumped * 1e3:.0f} ms")
    print(
        f"the same inside pyxla.inspecting: {looked * 1e3:.0f} ms; a child that only imports torch_xla: {child:.1f} s"
    )


if __name__ == "__main__":
    main()
