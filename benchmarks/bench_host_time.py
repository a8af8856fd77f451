"""Host time of a call: the op object and torch.ops against torch_xla's own `_xla_custom_call`, on XLA's CPU.

`_xla_custom_call` is a bare function. A torch op goes through torch's dispatcher, so there is a second baseline: the
same function as the XLA kernel of an op made by torch.library.

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

    def bare(a, b, alpha):
        attributes = "{alpha = 1.0 : f64}"
        return custom_call([a, b], simple_add.target, [[3, 4]], [torch.float32], False, attributes, 4, {})[0]

    library = torch.library.Library("bench_host_time", "DEF")
    library.define("bare(Tensor a, Tensor b, float alpha) -> Tensor")
    library.impl("bare", bare, "XLA")
    calls = {
        "_xla_custom_call": lambda: bare(a, b, 1.0),
        "the same as a torch op": lambda: torch.ops.bench_host_time.bare(a, b, 1.0),
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
        title = f"{count} call(s), then a sync"
        for name in calls:
            if name != "_xla_custom_call":
                table(title, [(name, times)], name, "_xla_custom_call")
        table(title, [("torch.ops", times)], "torch.ops", "the same as a torch op")


if __name__ == "__main__":
    main()
