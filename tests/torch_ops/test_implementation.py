"""One op with several implementations: the choice per call and per process, and how they are kept apart."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_xla

import pyxla
from pyxla import ArgumentError, DefinitionError, hlo, implementation, testing, use_implementation
from pyxla.hlo.text import custom_calls
from pyxla.testing.tolerance import compare

OWN, TRITON = "xla_gpu_rms_norm", "xla_gpu_rms_norm_triton"
RMS_NORM = pyxla.find_op("rms_norm")
FLASHINFER = pyxla.find_op("paged_attention.flashinfer")
PACKET = torch.ops.xla_gpu.rms_norm
ROWS = itertools.count(1)


@pytest.fixture(autouse=True)
def own_choice():
    torch._dynamo.reset()
    yield
    use_implementation("rms_norm", "default")


@pytest.fixture
def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments of sizes that no test has used, so that XLA compiles the call."""
    device, rows = torch_xla.device(), next(ROWS)
    return torch.randn(rows, 16).to(device), torch.randn(16).to(device)


def targets(function, *arguments) -> list[str]:
    return [call.target for call in pyxla.inspect(function, *arguments).calls()]


def compiled_targets(function, arguments) -> list[str]:
    """The targets in what XLA compiles for a call; unlike `pyxla.inspect`, this does not trace the graph again."""
    with hlo.optimized_modules() as modules:
        result = function(*arguments)
        torch_xla.sync(wait=True)
    compare("rms_norm", result.cpu(), RMS_NORM.reference(*(t.cpu().double() for t in arguments), 1e-6))
    return [call.target for module in modules for call in custom_calls(module)]


def test_a_call_names_its_implementation(arguments):
    assert targets(PACKET, *arguments) == targets(PACKET.default, *arguments) == [OWN]
    assert targets(PACKET.triton, *arguments) == targets(RMS_NORM.implementations["triton"], *arguments) == [TRITON]
    assert pyxla.find_op("rms_norm.triton") is RMS_NORM.implementations["triton"]


def test_two_implementations_in_one_graph(arguments):
    """If the target were not part of the key, the second result would be the first one."""
    seen = pyxla.inspect(lambda x, w: (PACKET(x, w), PACKET.triton(x, w)), *arguments)
    assert sorted(call.target for call in seen.calls()) == [OWN, TRITON]
    pyxla.assert_custom_calls(seen, "rms_norm", 2)
    pyxla.assert_custom_calls(seen, "rms_norm.triton", 1)
    pyxla.assert_custom_calls(seen, OWN, 1)


def test_choice_of_the_process_reaches_lazy_calls_in_shapes_seen_before(arguments):
    assert targets(RMS_NORM, *arguments) == [OWN]
    with use_implementation("rms_norm", "triton"):
        assert targets(RMS_NORM, *arguments) == targets(PACKET, *arguments) == [TRITON]
        assert pyxla.chosen_implementation("rms_norm") == "triton"
        with use_implementation("rms_norm", "default"):
            assert targets(RMS_NORM, *arguments) == [OWN]
        assert targets(RMS_NORM, *arguments) == [TRITON]
    assert targets(RMS_NORM, *arguments) == targets(PACKET, *arguments) == [OWN]


@pytest.mark.parametrize("op", [PACKET, RMS_NORM], ids=["torch.ops", "CustomOp"])
def test_choice_of_the_process_reaches_graphs_that_were_compiled_before(op, arguments):
    compiled = torch.compile(lambda x, w: op(x, w), backend="openxla", fullgraph=True)
    assert compiled_targets(compiled, arguments) == [OWN]
    assert compiled_targets(compiled, arguments) == []
    with use_implementation("rms_norm", "triton"):
        assert compiled_targets(compiled, arguments) == [TRITON]
    wider = tuple(torch.cat([t, t], dim=-1) for t in arguments)
    assert compiled_targets(compiled, wider) == [OWN]


def test_an_explicit_call_is_what_it_says_whatever_the_process_chose(arguments):
    compiled = torch.compile(lambda x, w: PACKET.triton(x, w), backend="openxla", fullgraph=True)
    assert compiled_targets(compiled, arguments) == [TRITON]
    with use_implementation("rms_norm", "triton"):
        assert targets(PACKET.triton, *arguments) == [TRITON]


def test_an_exported_program_holds_the_implementation(arguments):
    class Norm(torch.nn.Module):
        def forward(self, x):
            return PACKET.triton(x, None)

    x = arguments[0]
    program = torch.export.export(Norm(), (x.cpu(),))
    assert "torch.ops.xla_gpu.rms_norm.triton" in program.graph_module.print_readable(print_output=False)
    assert targets(program.module(), x) == [TRITON]


def test_gradient_is_the_ops(arguments):
    x, weight = arguments
    gradients = []
    for op in (PACKET, PACKET.triton):
        own = [t.detach().clone().requires_grad_() for t in (x, weight)]
        op(*own).square().sum().backward()
        gradients.append([t.grad.cpu() for t in own])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def test_cpu_tensors_run_the_reference():
    x = torch.randn(3, 8, dtype=torch.float64)
    with use_implementation("rms_norm", "triton"):
        assert torch.equal(RMS_NORM(x, None), RMS_NORM.reference(x, None, 1e-6))
    assert torch.equal(PACKET.triton(x, None), RMS_NORM.reference(x, None, 1e-6))


def test_unknown_names():
    with pytest.raises(ArgumentError, match=r"rms_norm: implementation: expected default or triton, got 'tritn'"):
        use_implementation("rms_norm", "tritn")
    with pytest.raises(ArgumentError, match=r"simple_add: implementation: expected default, got 'triton'"):
        use_implementation("simple_add", "triton")
    with pytest.raises(DefinitionError, match=r"rms_norn: op: expected one that is declared"):
        use_implementation("rms_norn", "triton")


def test_what_the_implementation_does_not_take_is_an_error_and_no_other_implementation():
    case = next(c for c in testing.cases_of(FLASHINFER.op) if c.name == "sinks-long-decode")
    on_xla = {n: v.to(torch_xla.device()) if torch.is_tensor(v) else v for n, v in case.arguments().items()}
    message = "paged_attention: sinks: expected None with implementation flashinfer, got a tensor"
    with use_implementation("paged_attention", "flashinfer"), pytest.raises(ArgumentError, match=message):
        FLASHINFER.op(**on_xla)
    assert not FLASHINFER.takes(case.arguments())
    assert FLASHINFER.op(**on_xla).isfinite().all()


def run(script: str, choice: str) -> subprocess.CompletedProcess:
    # Everything that is preloaded would be registered, whether called or not.
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "PYXLA_IMPLEMENTATION": choice, "LD_PRELOAD": ""}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("compiled", [False, True])
def test_choice_of_the_environment(compiled):
    function = "torch.compile(norm, backend='openxla', fullgraph=True)" if compiled else "norm"
    script = f"""
import torch, torch_xla, pyxla
def norm(x): return torch.ops.xla_gpu.rms_norm(x, None)
x = torch.ones(2, 4).to(torch_xla.device())
print({function}(x).sum().item())
from pyxla.library.register import registered
print(*(target for target, _ in registered()))
"""
    done = run(script, "rms_norm=triton, paged_attention=flashinfer")
    assert done.stdout.split() == ["7.999996185302734", TRITON], done.stderr


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("rms_norm=tritn", "rms_norm: implementation: expected default or triton, got 'tritn'"),
        ("rms_norm", "PYXLA_IMPLEMENTATION: entry: expected OP=IMPLEMENTATION, got 'rms_norm'"),
        ("nobody=triton", "nobody: op: expected one that is declared"),
    ],
)
def test_wrong_choice_of_the_environment(choice, message):
    done = run("import torch_xla", choice)
    assert done.returncode and message in done.stderr


def folder(tmp_path: Path, name: str, op: str | None) -> str:
    (tmp_path / name).mkdir()
    if op:
        (tmp_path / name / "implements").write_text(f"{op}\n")
    return str(tmp_path / name / f"{name}.py")


@pytest.mark.parametrize(
    ("name", "op", "message"),
    [
        ("rms_norm_fast", None, "rms_norm_fast: implements: expected a file with the name of the op, got none"),
        ("fast_norm", "rms_norm", "fast_norm: folder: expected rms_norm_ and the implementation's name, got fast_norm"),
        ("rms_norm_triton", "rms_norm", "rms_norm.triton: op: expected a name that is free"),
        (
            "rms_norm_default",
            "rms_norm",
            "rms_norm_default: implementation: expected a name other than default, the op's own, got default",
        ),
        ("paged_attention_lse", "paged_attention", "paged_attention.lse: op: expected a name that is free"),
    ],
)
def test_folder_that_is_no_implementation(tmp_path, name, op, message):
    with pytest.raises(DefinitionError) as error:
        implementation(folder(tmp_path, name, op))
    assert message in error.value.message
