"""`pyxla.inspect`: its description of a function is true, and the user's own run is unaffected."""

import json
import re

import pytest
import torch
import torch_xla
import torch_xla.debug.metrics as metrics
import torch_xla.runtime

import pyxla
from pyxla import testing
from tests.probe import probe_ops

pytestmark = pytest.mark.usefixtures("probe_library")
DEVICE = torch_xla.device()
ON_CUDA = torch_xla.runtime.device_type() == "CUDA"
only_on_the_cpu = pytest.mark.skipif(ON_CUDA, reason="the texts of XLA's CPU compiler")


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def add(x, y):
    """A custom call of two operands."""
    return probe_ops.probe_optionals(y, x)


def compiled_graphs() -> int:
    """torch_xla's own count: everything that XLA compiled."""
    return (metrics.metric_data("CompileTime") or [0])[0]


def test_call_operands_attributes_and_neighbours():
    x, y = tensor(8), tensor(8, seed=1)
    seen = pyxla.inspect(lambda: add(x * 2, y).relu())
    (module,) = seen.modules
    (call,) = seen.calls("xla_gpu_probe_optionals")
    assert seen.device == torch_xla.runtime.device_type()
    assert call.api_version == "API_VERSION_TYPED_FFI"
    assert [operand.shape for operand in call.operands] == ["f32[8]{0}", "f32[8]{0}", "pred[0]{0}"]
    assert call.operands[0].source.argument is not None and call.operands[0].source.opcode == "parameter"
    assert "multiply" in call.operands[1].source.fused or call.operands[1].source.opcode == "multiply"
    (reader,) = call.results[0].readers
    assert reader.opcode == "fusion" and "maximum" in reader.fused
    assert module.calls_before == {"xla_gpu_probe_optionals": 1} and module.missing() == {}
    assert module.copies == () and call.aliases == ()


def test_attributes_are_python_values():
    """Attributes of every kind, as the caller passed them; an absent number is None."""
    x = tensor(3)
    values = {
        "integer": -(2**62), "number": float("inf"), "flag": True, "string": 'a"\\\n{x}, array<i64: 1, é',
        "integers": [1, -2], "numbers": [0.1, -0.0, 1e-300], "maybe_integer": None, "maybe_number": 2.5,
    }  # fmt: skip
    (call,) = pyxla.inspect(lambda: probe_ops.probe_attributes(x, **values)).calls()
    assert call.attributes == values
    assert str(call.attributes["numbers"][1]) == "-0.0"


def test_many_numbers_as_one_attribute():
    """MLIR prints more than a hundred elements as bytes."""
    x, integers, numbers = tensor(3), list(range(-100, 400)), [0.5 * i for i in range(300)]
    seen = pyxla.inspect(lambda: probe_ops.probe_attributes(x, 1, 1.0, True, "", integers, numbers))
    assert (seen.calls()[0].attributes["integers"], seen.calls()[0].attributes["numbers"]) == (integers, numbers)


def only_copies(fn, *args) -> list[tuple[str, str]]:
    """(place, reason) of each copy."""
    (module,) = pyxla.inspect(fn, *args).modules
    return [(copy.place, copy.reason) for copy in module.copies]


@only_on_the_cpu
@pytest.mark.parametrize(
    ("fn", "place", "reason"),
    [
        (
            lambda x: add(x.t(), x.t()),
            "operand 0",
            r"operand 0 is argument 0 transposed, and the call takes it row-major",
        ),
        (
            lambda x: add(x[2:5], x[2:5]),
            "operand 0",
            r"operand 0 is a slice of argument 0, and the call takes dense memory",
        ),
        (lambda x: (lambda y: add(y, y))(x.expand(3, 7)), "operand 0", r"operand 0 is argument 0 expanded, and .+"),
        (lambda x: (add(x, x), add(x, x)), "result 0", r"result 0 is returned twice, and .+ cannot share a buffer"),
        (lambda x: (add(x, x) * 2).t() + 1, "", r"\S+ is f32\[6,9\]\{0,1\}, and f32\[6,9\]\{1,0\} is needed"),
    ],
    ids=["transposed", "slice", "expanded", "returned twice", "layout of an output"],
)
def test_copies_and_why(fn, place, reason):
    copies = only_copies(fn, tensor(7) if "expanded" in reason else tensor(9, 6))
    assert copies and copies[0][0] == place, copies
    assert re.fullmatch(reason, copies[0][1]), copies


def test_copy_because_the_old_value_is_needed():
    cache, update = tensor(33), tensor(33, seed=1)

    def step():
        old = cache * 2
        probe_ops.probe_accumulate(cache, update)
        return old

    (module,) = pyxla.inspect(step).modules
    assert module.copies and all(copy.in_place and copy.size == 33 * 4 for copy in module.copies)
    assert all("are still needed, by" in copy.reason for copy in module.copies)


@only_on_the_cpu
def test_copy_because_a_slice_is_no_buffer_of_its_own():
    cache, update = tensor(8, 32), tensor(32, seed=1)
    copies = only_copies(lambda: probe_ops.probe_accumulate(cache[2], update))
    assert ("operand 0", "operand 0 is a slice of argument 1, and the call takes dense memory") in copies
    assert any("argument 1 is not donated" in reason for _, reason in copies), copies


@pytest.mark.parametrize("compiled", [False, True])
def test_update_in_place(compiled):
    """The memory plan's numbers are those of the tensors."""
    cache, update = tensor(1000), tensor(1000, seed=1)
    want = cache.cpu() + update.cpu()

    def step(cache, update):
        return probe_ops.probe_accumulate(cache, update)

    fn = torch.compile(step, backend="openxla") if compiled else step
    (module,) = pyxla.inspect(fn, cache, update).modules
    (call,) = module.calls
    assert torch.equal(cache.cpu(), want), "it ran once"
    assert module.aliases and call.aliases == ((0, 0),) and module.copies == ()
    assert module.memory.in_place == 4000 and module.memory.arguments == 8000
    assert module.memory.total >= 8004


def test_memory_plan_adds_up():
    x = tensor(64, 64)
    (module,) = pyxla.inspect(lambda: add(x @ x, x).softmax(-1)).modules
    plan = module.memory
    assert sum(allocation.size for allocation in plan.allocations) == plan.total
    parts = plan.arguments + plan.outputs + plan.temporaries + plan.constants
    assert parts == plan.total
    assert {a.parameter for a in plan.allocations if a.kind == "argument"} >= {0}
    assert plan.outputs >= x.nbytes


def test_calls_that_xla_leaves_out():
    x = tensor(5)
    (module,) = pyxla.inspect(lambda: (add(x, x), add(x, x))).modules
    assert module.missing() == {"xla_gpu_probe_optionals": 1} and len(module.calls) == 1
    assert "1 fewer than before" in str(pyxla.inspect(lambda: (add(x, x), add(x, x))))


def test_looking_adds_no_compilation():
    """The next run uses the graphs that XLA compiled during `inspect`."""
    x = tensor(17)
    calls = []

    def step(x):
        calls.append(1)
        return add(x, x) - 1

    torch_xla.sync(wait=True)
    before = compiled_graphs()
    pyxla.inspect(step, x)
    assert len(calls) == 1
    step(x).cpu()
    assert compiled_graphs() - before == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_looking_at_what_is_compiled_already(compiled):
    """The function runs again for the inspection; the user's next run compiles nothing, and the counters stay."""
    x, calls = tensor(18 + compiled), []

    def step(x):
        return add(x, x) - 3

    fn = torch.compile(step, backend="openxla") if compiled else step

    def counted(x):
        calls.append(1)
        return fn(x)

    counted(x).cpu()
    torch_xla.sync(wait=True)
    before, own = testing.compilations(), compiled_graphs()
    for _ in range(3):
        seen = pyxla.inspect(counted, x)
        assert [call.target for call in seen.calls()] == ["xla_gpu_probe_optionals"]
    assert len(calls) == 1 + 2 * 3
    assert testing.compilations() == before and compiled_graphs() == own + 3
    torch.testing.assert_close(counted(x).cpu(), x.cpu() + x.cpu()[0] - 3)
    assert (testing.compilations(), compiled_graphs()) == (before, own + 3)


def test_a_run_that_is_counted_late(monkeypatch):
    """Another thread counts executions; a graph that XLA had compiled before must still be shown."""
    x = tensor(11)

    def fn():
        return add(x, x)

    fn().cpu()
    monkeypatch.setattr(pyxla.hlo.dump, "executions", lambda: 0)
    assert pyxla.inspect(fn).calls("xla_gpu_probe_optionals")


def test_every_graph_of_a_function_is_there():
    """A function that reads a value has two graphs; XLA knows one of them already."""
    x = tensor(19)

    def step(x):
        first = add(x, x)
        return add(x, x * first.sum().item())

    add(x, x).sum().cpu()
    seen = pyxla.inspect(step, x)
    assert len(seen.modules) == 2 and len(seen.calls()) == 2


def test_block():
    x = tensor(20)
    add(x, x).cpu()
    with pyxla.inspecting() as seen:
        y = add(x, x)
    assert len(seen.calls()) == 1
    with pyxla.inspecting(private=False) as seen:
        y = add(x, x)
    assert seen.modules == [] and y.cpu().shape == (20,)


def test_what_was_pending_is_not_part_of_it():
    x = tensor(21)
    pending = x.exp()
    (module,) = pyxla.inspect(lambda: add(x, x)).modules
    assert "exponential" not in module.before
    assert torch.equal(pending.cpu(), x.cpu().exp()) or torch.allclose(pending.cpu(), x.cpu().exp())


def test_json():
    x = tensor(25)
    seen = pyxla.inspect(lambda: probe_ops.probe_attributes(x, 1, float("nan"), True, "s", [1], [float("inf")]))
    data = json.loads(json.dumps(seen.as_json(), allow_nan=False))
    (call,) = data["modules"][0]["calls"]
    assert (call["attributes"]["number"], call["attributes"]["numbers"]) == ("nan", ["inf"])
    assert data["modules"][0]["memory"]["total"] == seen.modules[0].memory.total


def test_stablehlo():
    x = tensor(26)
    (module,) = pyxla.inspect(lambda: torch.erf(add(x, x)).sum()).modules
    text = module.stablehlo()
    assert "stablehlo.custom_call @xla_gpu_probe_optionals" in text and "loc(" not in text
