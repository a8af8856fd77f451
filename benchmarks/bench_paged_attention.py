"""paged_attention's host handler on XLA's CPU against torch's own attention on its CPU device, same threads.

torch's side gathers keys and values through the block table and calls scaled_dot_product_attention, a sequence at a
time; a decode step's grouped heads are the rows of one product, which is faster there than repeating the keys.

python benchmarks/bench_paged_attention.py [dtype ...]     float32 bfloat16 float16
"""

import os
import sys

import torch
import torch_xla
from paired import paired, table
from pyxla_kernels.paged_attention.cases import arguments, torch_attention
from pyxla_kernels.paged_attention.paged_attention import paged_attention

from pyxla.compare import compare

GROUPED = {"heads": (32, 8), "d": 128}
BATCHES = {
    "decode 16 x 1024": ([(1, 1024)] * 16, GROUPED),
    "decode 16 x 1024, ungrouped": ([(1, 1024)] * 16, {"heads": (16, 16), "d": 128}),
    "decode 1 x 8192": ([(1, 8192)], GROUPED),
    "decode 1 x 8192, 1 kv head": ([(1, 8192)], {"heads": (8, 1), "d": 128}),
    "prefill 2 x 512": ([(512, 512)] * 2, GROUPED),
    "prefill 2 x 512, d 64": ([(512, 512)] * 2, {"heads": (16, 16), "d": 64}),
    "256 new on 1792": ([(256, 2048)], GROUPED),
    "2 prefills, 4 decodes": ([(1, 700), (300, 300), (1, 1500), (1, 90), (64, 1024), (1, 2000)], GROUPED),
}


def main(dtypes: list[str]) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = torch_xla.device()
    rows = []
    for dtype in dtypes:
        for label, (lengths, options) in BATCHES.items():
            inputs = arguments(torch.Generator().manual_seed(0), lengths, getattr(torch, dtype), **options)
            on_xla = {name: v.to(device) if torch.is_tensor(v) else v for name, v in inputs.items()}
            wide = {n: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for n, v in inputs.items()}
            compare(label, paged_attention(**on_xla).cpu(), torch_attention(**wide))

            def ours(on_xla=on_xla):
                result = paged_attention(**on_xla)
                torch_xla.sync(wait=True)
                return result

            candidates = {"pyxla": ours, "torch": lambda inputs=inputs: torch_attention(**inputs)}
            rows.append((f"{dtype} {label}", paired(candidates, rounds=11)))
    table(f"paged_attention on the CPU, {torch.get_num_threads()} threads, blocks of 16", rows, "pyxla", "torch")


if __name__ == "__main__":
    main(sys.argv[1:] or ["float32", "bfloat16", "float16"])
