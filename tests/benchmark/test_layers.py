"""pyxla.benchmark: the layers of a bench, each timed on the CPU, and on a GPU where there is one."""

import gc
import importlib
import math
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels._paged_attention.benches import bench as attention_bench
from pyxla_kernels.simple_add.simple_add import simple_add

from devtool.bench.compare import paired_shift
from pyxla.benchmark import Bench, host
from pyxla.benchmark.__main__ import benches
from pyxla.benchmark.check import Expected
from pyxla.benchmark.cuda import Lead
from pyxla.benchmark.layers import Raw, Single, Skipped, Step, chained_operand, step_calls, warm_up
from pyxla.benchmark.peers import peer_layer, peer_names
from pyxla.benchmark.run import LAYERS, measure, steps_of
from pyxla.benchmark.xla_step import xla_step
from pyxla.torch_ops.custom_op import CustomOp, find_op
from tests.benchmark.small_bench import small
from tests.layers.test_imports import IMPLEMENTATIONS, OPS

EVERY = sorted([*OPS, *(f"{op}.{name.removeprefix(f'{op}_')}" for name, op in IMPLEMENTATIONS.items())])
needs_gpu = pytest.mark.skipif(os.environ.get("PJRT_DEVICE") != "CUDA", reason="needs a GPU: --device cuda")


def smallest_bench(name: str, device: str) -> tuple[CustomOp, Bench]:
    """The op or implementation, and the bench with the fewest bytes among those that it takes."""
    folder = name.replace(".", "_")
    importlib.import_module(f"pyxla_kernels.{folder}.{folder}")
    op = find_op(name)
    sized = ((bench, bench.arguments()) for bench in benches(name.partition(".")[0]) if device in bench.devices)
    taken = [(bench.bytes(a), bench) for bench, a in sized if name == op.library or op.takes(a)]
    return op, min(taken, key=lambda entry: entry[0])[1]


def test_record_of_a_bench(device, monkeypatch):
    monkeypatch.setattr("pyxla.benchmark.peers.torch.compile", lambda peer, dynamic: peer)  # inductor is slow
    bench, told = small(others={"another": lambda **_: None}), []
    record = measure(simple_add, bench, device, layers=("raw", "peers"), rounds=4, tell=told.append)
    assert len(told) == steps_of(bench, ("raw", "peers"), 4)
    names = [layer["name"] for layer in record["layers"]]
    assert names == ["raw", "raw step", "torch", "torch.compile", "another"]
    timed = [layer for layer in record["layers"] if "seconds" in layer]
    assert len(timed) == 4 and all(len(la["seconds"]) == 4 and min(la["seconds"]) > 0 for la in timed)
    assert record["layers"][-1]["skipped"] == "for CUDA only"
    assert (record["bytes"], record["operations"], record["checked"]) == (3 * 128, 64, "all")
    assert len(record["control"]) == 4


@pytest.mark.parametrize("name", EVERY)
def test_both_steps_of_every_op_are_right(device, name):
    """The smallest bench of each op and implementation: its step, chained or in place, has the calls that it states."""
    op, bench = smallest_bench(name, "cpu")
    if name.startswith("paged_attention"):
        dtype, d = (torch.bfloat16, 64) if op.name == "paged_attention.flashinfer" else (torch.float32, 16)
        bench = attention_bench("small", "quick", [(1, 300), (40, 70)], "cpu", dtype, heads=(4, 2), d=d)
    arguments = bench.arguments()
    expected = Expected(op, bench, arguments)
    raw = Raw(op, arguments, device, expected)
    assert 0 <= raw.error <= 1
    for step in (raw.step(3), xla_step(op, arguments, raw.chained, 3, expected)):
        assert step.calls == 3 and warm_up(step) > 0


def test_a_step_hands_on_results(device):
    """a + alpha * b, five times."""
    bench = small()
    arguments = bench.arguments()
    raw = Raw(simple_add, arguments, device, Expected(simple_add, bench, arguments))
    assert raw.chained == ("a", 0)
    step = raw.step(5)
    for _ in range(2):  # every step starts from the bench's own a
        step.many()
        torch.testing.assert_close(raw._outputs[0], arguments["a"] + 5 * 0.5 * arguments["b"])


def test_operand_that_a_result_fits():
    a, b = torch.empty(2, 3), torch.empty(2, 3, dtype=torch.bfloat16)
    arguments = {"a": a, "b": a, "alpha": 1.0}
    assert chained_operand(simple_add, arguments, [a]) == ("a", 0)
    assert chained_operand(simple_add, arguments, [b]) is None
    assert chained_operand(simple_add, arguments, [a.reshape(3, 2)]) is None
    assert chained_operand(find_op("fused_add_rms_norm"), {"x": a, "residual": a, "weight": None}, [a]) is None


@given(seconds=st.floats(0, 10), rows=st.integers(1, 1 << 22))
@settings(max_examples=50)
def test_calls_of_a_step_fit_in_time_and_memory(seconds, rows):
    halves = find_op("silu_and_mul")
    arguments = {"x": torch.empty(rows, 64, device="meta")}
    results = [torch.empty(rows, 32, device="meta")]
    calls = step_calls(halves, arguments, results, seconds, host.HostDevice)
    assert 2 <= calls <= 128
    assert calls == 2 or calls * rows * 96 * 4 <= host.HostDevice.step_bytes


def test_what_a_step_costs_by_itself_is_taken_off():
    step = Step("raw step", "", lambda call: 0.0, None, None, calls=10)
    step._one, step._many = [3.0] * 3, [21.0, 21.0, 30.0]  # one unit for the start, two for each call
    assert step.samples() == [2.0, 2.0, 3.0]
    step._one, step._many = [5.0, 0.1], [2.0, 10.0]  # noise: one call took longer than ten, or less than one of them
    assert step.samples() == [0.002, 1.0]


@pytest.mark.parametrize(("calls", "start"), [(2, 0.5), (4, 2.0), (128, 20.0)])
def test_interval_of_a_step_beside_itself(calls, start):
    """Holds 1 in 99 % of all runs, also with few calls, in which the start is as large as the noise."""
    noise = random.Random(calls)

    def samples():
        step = Step("raw step", "", lambda call: 0.0, None, None, calls)
        for _ in range(50):
            step._one.append((start + 1) * noise.lognormvariate(0, 0.1))
            step._many.append((start + calls) * noise.lognormvariate(0, 0.1))
        return step.samples()

    intervals = [paired_shift(samples(), samples()) for _ in range(200)]
    assert sum(low <= 1 <= high for _, low, high in intervals) >= 194


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        (lambda a, b, alpha: a - b, "AssertionError: values: expected the op's, got"),
        (lambda a, b, alpha: torch.add(a, b, alpha=alpha)[:2], "AssertionError: shape: expected (4, 8), got (2, 8)"),
        (lambda a, b, alpha: importlib.import_module("no_such_library"), "not installed: No module named"),
        (lambda a, b, alpha: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_peer_that_does_other_work_or_none_is_skipped(device, peer, reason):
    bench = small(peer=peer)
    arguments = bench.arguments()
    layer = peer_layer(simple_add, bench, "torch", arguments, device, Expected(simple_add, bench, arguments))
    assert isinstance(layer, Skipped) and layer.reason.startswith(reason)


def test_peers_of_a_bench():
    assert peer_names(small()) == ["torch", "torch.compile"]
    assert peer_names(small(peer=None, others={"flashinfer": None})) == ["flashinfer"]


def test_peer_that_reads_lengths_is_not_compiled(device):
    bench = small(reads_lengths=True)
    layer = peer_layer(simple_add, bench, "torch.compile", bench.arguments(), device, None)
    assert layer == Skipped("torch.compile", "the peer reads lengths on the host: not one graph")


def test_memory_that_nobody_wrote_shows(device):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert device.empty((3, 5), dtype).isnan().all()
    assert device.empty((2,), torch.int32).tolist() == [-1, -1]
    assert device.empty((), torch.float32).isnan()


# The GPU.


@needs_gpu
@pytest.mark.parametrize("kind", ["TorchCudaDevice", "CupyCudaDevice"])
def test_layers_on_a_gpu(kind):
    from pyxla.benchmark import cuda

    if kind == "TorchCudaDevice" and not torch.cuda.is_available():
        pytest.skip("torch has no CUDA")
    device = getattr(cuda, kind)()
    for name in EVERY:
        op, bench = smallest_bench(name, "cuda")
        record = measure(op, bench, device, layers=LAYERS, rounds=3, tell=lambda what: None)
        assert "refused" not in record, record
        layers = {layer["name"]: layer for layer in record["layers"]}
        for layer in ("raw", "raw step", "xla step"):
            assert all(0 < s < 1 and math.isfinite(s) for s in layers[layer]["seconds"]), (name, layers[layer])
        assert layers["raw"]["how"] == "replayed as a CUDA graph"
        calls = layers["xla step"]["calls"]
        assert f"{calls} of {calls} calls in command buffers" in layers["xla step"]["how"], name


def test_time_that_a_call_takes_the_host_does_not_count():
    # A thread works in order, as a GPU does; a write takes it 10 ms, and a call takes 60 ms on the host.
    written = []
    with ThreadPoolExecutor(max_workers=1) as stream:

        def call():
            time.sleep(0.06)

        def sample(writes: int) -> tuple[float, bool]:
            written.append(writes)
            for _ in range(writes):
                stream.submit(time.sleep, 0.01)
            start = stream.submit(time.perf_counter)
            call()
            end = stream.submit(time.perf_counter)
            is_ahead = not start.done()
            return end.result() - start.result(), is_ahead

        lead = Lead()
        assert sample(1)[0] > 0.03
        assert lead.seconds(call, sample) < 0.03
        assert lead.seconds(call, sample) < 0.03
    assert written[-2:] == [written[-1]] * 2 and 4 < written[-1] <= Lead.most  # known from the first run

    assert list(lead._writes) == [call]
    call = sample = None
    gc.collect()
    assert not lead._writes  # no call's operands are kept

    # A call that waits for its own result is never ahead.
    tries = []
    lead.seconds(print, lambda writes: (tries.append(writes), False))
    assert tries == [1, 2, 4, 8, 16]


def test_single_layer_takes_a_sample_per_round(device):
    calls = []
    layer = Single("raw", "", device, lambda: calls.append(1))
    warm_up(layer)
    assert layer.samples() == []
    layer.measure()
    assert len(layer.samples()) == 1 and len(calls) == 4
