"""rms_norm's host handler on XLA's CPU against torch's own rms_norm on its CPU device, same threads.

python benchmarks/bench_rms_norm.py
"""

import os

import torch
import torch_xla
from paired import paired, table
from pyxla_kernels.rms_norm.cases import arguments, torch_rms_norm
from pyxla_kernels.rms_norm.rms_norm import rms_norm

from pyxla.compare import compare

# Shape -> calls in a graph: a step of XLA costs more than one small rms_norm, and a model of 32 layers has 65 of them.
SHAPES = {(1, 4096): 65, (64, 4096): 65, (2048, 4096): 10, (512, 8192): 10, (16, 262144): 10}


def main() -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = torch_xla.device()
    rows = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shape, count in SHAPES.items():
            inputs = arguments(torch.Generator().manual_seed(0), shape, dtype, dtype)
            x, weight = inputs["x"].to(device), inputs["weight"].to(device)
            wide = rms_norm.reference(inputs["x"].double(), inputs["weight"].double(), inputs["eps"])
            compare(f"rms_norm {shape}", rms_norm(x, weight, 1e-6).cpu(), wide)

            def chain(x, weight, count=count):
                for _ in range(count):
                    x = rms_norm(x, weight, 1e-6)
                return x

            torch._dynamo.reset()
            compiled = torch.compile(chain, backend="openxla", fullgraph=True)

            def ours(x=x, weight=weight, compiled=compiled):
                result = compiled(x, weight)
                torch_xla.sync(wait=True)
                return result

            def theirs(x, weight, eps, count=count):
                for _ in range(count):
                    x = torch_rms_norm(x, weight, eps)
                return x

            times = paired({"pyxla": ours, "torch": lambda inputs=inputs: theirs(**inputs)}, rounds=15)
            rows.append((f"{str(dtype)[6:]} {count} times {shape[0]} x {shape[1]}", times))
    table(f"rms_norm in one compiled graph on the CPU, {torch.get_num_threads()} threads", rows, "pyxla", "torch")


if __name__ == "__main__":
    main()
