"""Host time of a call: torch.ops and the op object against torch_xla's own `_xla_custom_call`, on XLA's CPU.

python benchmarks/bench_host_time.py
"""

import torch
import torch_xla
from paired import paired, table
from pyxla_kernels.simple_add.simple_add import simple_add


def main() -> None:
    device = torch_xla.device()
    a, b = torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)
    custom_call = torch_xla._XLAC._xla_custom_call
    calls = {
        "_xla_custom_call": lambda: custom_call(
            [a, b], simple_add.target, [[3, 4]], [torch.float32], False, "{alpha = 1.0 : f64}", 4, {}
        )[0],
        "op object": lambda: simple_add(a, b, 1.0),
        "torch.ops": lambda: torch.ops.xla_gpu.simple_add(a, b, 1.0),
        "native add": lambda: a + b,
    }
    want = simple_add(a, b, 1.0).cpu().tolist()
    assert want == (a.cpu() + b.cpu()).tolist()
    for name, call in calls.items():
        assert call().cpu().tolist() == want, f"{name}: wrong numbers, not timed"

    def step(call, count):
        def run():
            kept = [call() for _ in range(count)]
            torch_xla.sync()
            return kept

        return run

    for count in (1, 100):
        times = paired({name: step(call, count) for name, call in calls.items()}, rounds=300)
        for name in calls:
            if name != "_xla_custom_call":
                table(f"{count} call(s), then a sync", [(name, times)], name, "_xla_custom_call")


if __name__ == "__main__":
    main()
