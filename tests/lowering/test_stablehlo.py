"""torch_xla.stablehlo with these ops: what it keeps, and what it loses but pyxla.export keeps."""

import pytest
import torch
import torch_xla
from torch_xla.stablehlo import StableHLOGraphModule, exported_program_to_stablehlo, save_as_stablehlo

import pyxla

DEVICE = torch_xla.device()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64))
        self.linear = torch.nn.Linear(64, 8)

    def forward(self, x, y):
        normed = torch.ops.xla_gpu.rms_norm(x, self.weight, 0.25)
        return self.linear(torch.ops.xla_gpu.simple_add(normed, y, 0.5)), torch.ops.xla_gpu.rms_norm(y, None)


class Updates(torch.nn.Module):
    def forward(self, x, residual):
        return torch.ops.xla_gpu.fused_add_rms_norm(x, residual, None)


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("residual", torch.zeros(3, 64))

    def forward(self, x):
        return torch.ops.xla_gpu.fused_add_rms_norm(x, self.residual, None)


def exported(module, *args):
    torch.manual_seed(0)
    return exported_program_to_stablehlo(torch.export.export(module, args))


def custom_calls(program):
    return [line for line in program.get_stablehlo_text().splitlines() if "stablehlo.custom_call" in line]


X, Y = torch.randn(3, 64), torch.randn(3, 64)


def test_custom_calls_keep_their_attributes_layouts_and_results(tmp_path):
    block = Block()
    program = torch.export.export(block, (X, Y))
    stablehlo = exported_program_to_stablehlo(program)
    lines = custom_calls(stablehlo)
    assert [line.partition("@")[2].partition("(")[0] for line in lines].count("xla_gpu_rms_norm") == 2
    assert all("api_version = 4 : i32" in line and "operand_layouts = [dense<[1, 0]>" in line for line in lines)
    text = " ".join(lines)
    for attribute in ("{eps = 2.500000e-01 : f64}", "{alpha = 5.000000e-01 : f64}", "tensor<0xi1>"):
        assert attribute in text
    assert b"xla_gpu_simple_add" in stablehlo.get_stablehlo_bytecode()
    save_as_stablehlo(program, tmp_path / "saved")
    for run in (stablehlo, StableHLOGraphModule.load(tmp_path / "saved")):
        for got, want in zip(run(X.to(DEVICE), Y.to(DEVICE)), block(X, Y), strict=True):
            torch.testing.assert_close(got.cpu(), want.detach(), rtol=1e-5, atol=1e-5)


def test_updates_in_place_keep_their_alias():
    (line,) = custom_calls(exported(Updates(), X, Y))
    assert "output_tuple_indices = [0], operand_index = 1" in line


def test_what_torch_xla_loses_and_pyxla_keeps(tmp_path):
    """With an updated argument torch_xla counts the update as a result and fails. The update of a buffer is lost. It
    converts bfloat16 weights to numpy arrays and fails. This test shows when that changes."""
    with pytest.raises(ValueError, match="`leaves` has length 2 but the spec refers to a pytree that holds 1 items"):
        exported(Updates(), X, Y)(X.to(DEVICE), Y.to(DEVICE))
    program = exported(Counts(), X)
    assert torch.is_tensor(program(X.to(DEVICE))) and not program._bundle.state_dict["residual"].any()
    with pytest.raises(TypeError, match="Got unsupported ScalarType BFloat16"):
        exported(Block().bfloat16(), X.bfloat16(), Y.bfloat16())

    pyxla.export(Updates(), (X, Y), tmp_path / "updates")
    x, residual = X.to(DEVICE), Y.to(DEVICE)
    pyxla.load_artifact(tmp_path / "updates")(x, residual)
    torch.testing.assert_close(residual.cpu(), X + Y)
    pyxla.export(Block().bfloat16().to(DEVICE), (X.bfloat16(), Y.bfloat16()), tmp_path / "bfloat16")
    assert {w.dtype for w in pyxla.load_artifact(tmp_path / "bfloat16").manifest.weights} == {"bfloat16"}
