"""The benches of all ops: their rules, and that a wrong kernel is not timed."""

import importlib
import statistics

import pytest
import torch
from pyxla_kernels._paged_attention.batches import torch_attention
from pyxla_kernels._paged_attention.benches import batch, moved_bytes, operations, ragged, sample
from pyxla_kernels.simple_add.simple_add import simple_add

from pyxla.benchmark import nbytes
from pyxla.benchmark.__main__ import benches
from pyxla.benchmark.check import Expected
from pyxla.benchmark.layers import Raw
from pyxla.benchmark.run import LAYERS, measure, steps_of
from pyxla.benchmark.xla_step import xla_step
from pyxla.testing import oracle
from pyxla.torch_ops.custom_op import find_op
from tests.benchmark.small_bench import small
from tests.layers.test_imports import OPS

BENCHES = [(op, bench) for op in OPS for bench in benches(op)]
ON_THE_CPU = [(op, bench) for op, bench in BENCHES if "cpu" in bench.devices]


def test_every_op_has_benches_for_both_devices():
    for device in ("cpu", "cuda"):
        assert {op for op, bench in BENCHES if device in bench.devices} == set(OPS)


@pytest.mark.parametrize("op", OPS)
def test_names_of_benches_are_unique_and_say_why(op):
    for device in ("cpu", "cuda"):
        names = [bench.name for bench in benches(op) if device in bench.devices]
        assert len(names) == len(set(names))
    assert all(bench.why and set(bench.devices) <= {"cpu", "cuda"} for bench in benches(op))


@pytest.mark.parametrize(("op", "bench"), ON_THE_CPU, ids=lambda value: str(value))
def test_bytes_of_a_bench_are_no_more_than_there_are(op, bench):
    """The bytes of a bench are a lower bound, which counts each operand and each result at most once."""
    importlib.import_module(f"pyxla_kernels.{op}.{op}")
    schema, arguments = find_op(op).schema, bench.arguments()
    metas = [v.to("meta") if torch.is_tensor(v) else v for v in schema.bind((), arguments)]
    results = find_op(op).infer_results(tuple(metas))
    tensors = [arguments[a.name] for a in schema.tensors]
    assert 0 < bench.bytes(arguments) <= nbytes(*tensors, *results, *(arguments[a.name] for a in schema.mutated))
    assert bench.operations(arguments) >= 0
    again = bench.arguments()
    assert all(torch.equal(v, again[n]) for n, v in arguments.items() if torch.is_tensor(v))


def test_work_of_attention():
    """Computed by hand: a decode over 20 keys; a prefill of 3 tokens over 4, 5 and 6."""
    arguments = batch(torch.Generator(), [(1, 20), (3, 6)], torch.float32, heads=(4, 2), d=8)
    assert operations(arguments) == 4 * 4 * 8 * (20 + 4 + 5 + 6)
    assert moved_bytes(arguments) == 4 * (2 * 26 * 2 * 8 + 2 * 4 * 4 * 8)


def test_sampled_rows_of_attention_are_those_of_the_whole_batch():
    op = find_op("paged_attention")
    arguments = batch(torch.Generator().manual_seed(3), [(9, 40), (1, 70), (30, 30)], torch.float32, heads=(4, 2), d=16)
    smaller, rows = sample(arguments)
    assert {0, 39} <= set(rows.tolist()) and len(rows) > 8
    (whole,), (some,) = oracle(op, arguments), oracle(op, smaller)
    torch.testing.assert_close(some, whole[rows], rtol=1e-12, atol=1e-12)
    wide = {n: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for n, v in arguments.items()}
    torch.testing.assert_close(torch_attention(**wide), whole)


def test_ragged_contexts():
    contexts = [context for _, context in ragged(64, 16384)]
    assert len(contexts) == 64 and (max(contexts), min(contexts)) == (16384, 1)
    assert statistics.median(contexts) < 256


# Right benches, and rejected ones.


def test_wrong_numbers_are_refused():
    bench = small()
    expected = Expected(simple_add, bench, bench.arguments())
    right = bench.peer(**bench.arguments())
    assert expected.compare([right]) < 1
    with pytest.raises(AssertionError, match=r"simple_add\[small\]: values: expected .* at \(3, 7\), got"):
        expected.compare([right + 1e-3 * torch.nn.functional.one_hot(torch.tensor(31), 32).reshape(4, 8)])
    with pytest.raises(AssertionError, match="expected 1 results, got 2"):
        expected.compare([right, right])


def test_of_a_sample_the_other_rows_must_be_written():
    bench = small(sample=lambda a: ({n: v[1:2] if torch.is_tensor(v) else v for n, v in a.items()}, torch.tensor([1])))
    expected = Expected(simple_add, bench, bench.arguments())
    assert expected.extent == "1 rows"
    right = bench.peer(**bench.arguments())
    expected.compare([right])
    with pytest.raises(AssertionError, match="expected every row to be written, got 1 NaN"):
        expected.compare([right.index_put((torch.tensor(3), torch.tensor(0)), torch.tensor(torch.nan))])


def test_raw_call_that_is_wrong_is_no_layer(device, monkeypatch):
    """The kernel computes with another alpha than the reference."""
    bench = small()
    wrong = Expected(simple_add, bench, bench.arguments() | {"alpha": 0.25})
    with pytest.raises(AssertionError, match="values: expected"):
        Raw(simple_add, bench.arguments(), device, wrong)
    told = []
    monkeypatch.setattr("pyxla.benchmark.run.Expected", lambda *_: wrong)
    record = measure(simple_add, bench, device, layers=LAYERS, rounds=3, tell=told.append)
    assert record["refused"].startswith("simple_add[small]: values: expected") and record["layers"] == []
    assert len(told) == steps_of(bench, LAYERS, 3)


def test_compiled_step_that_is_wrong_is_no_layer():
    bench = small()
    wrong = Expected(simple_add, bench, bench.arguments() | {"alpha": 0.25})
    with pytest.raises(AssertionError, match="values: expected"):
        xla_step(simple_add, bench.arguments(), ("a", 0), 3, wrong)
