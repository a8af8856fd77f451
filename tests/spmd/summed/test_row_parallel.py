"""pyxla.nn.row_parallel_norm: each device's product, and one sum over the devices, in the op or by XLA."""

import re

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime

import pyxla
from pyxla.nn import row_parallel_norm, split
from pyxla.nn.row_parallel import groups_of
from pyxla.testing.tolerance import compare

COUNT = torch_xla.runtime.global_runtime_device_count()
DEVICE = torch_xla.device()
MESH = xs.Mesh(np.arange(COUNT), (1, COUNT), ("data", "model"))
TARGET = "xla_gpu_fused_all_reduce_rms_norm"


def given(tokens, hidden, norm=True, seed=0):
    """Arguments on the CPU: x, weight, residual, norm, eps. Each device has 16 of the inputs."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (tokens, 16 * COUNT), (hidden, 16 * COUNT), (tokens, hidden), (hidden,)
    x, weight, residual, factors = (torch.randn(shape, generator=generator) for shape in shapes)
    return x, weight, residual, factors if norm else None, 1e-5


def on_mesh(x, weight, residual, norm, eps):
    moved = [split(t.to(DEVICE), MESH, dim) for t, dim in ((x, 1), (weight, 1), (residual, None))]
    factors = None if norm is None else split(norm.to(DEVICE), MESH, None)
    torch_xla.sync(wait=True)
    return *moved, factors, eps


def check(function, arguments):
    moved = on_mesh(*arguments)
    with pyxla.inspecting() as seen, torch.no_grad():
        out = function(*moved)
        torch_xla.sync(wait=True)
    x, weight, residual, norm = (None if t is None else t.double() for t in arguments[:4])
    total = x @ weight.T + residual
    compare("residual", moved[2].cpu(), total, roundings=64)
    want = torch.nn.functional.rms_norm(total, total.shape[1:], norm, arguments[4])
    compare("out", out.cpu(), want, roundings=64)
    return [module for module in seen.modules if module.calls]


@pytest.mark.parametrize("mode", ["lazy", "compiled"])
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no-norm"])
def test_the_op_adds_the_products(mode, norm):
    torch._dynamo.reset()
    function = row_parallel_norm(MESH)
    if mode == "compiled":
        function = torch.compile(function, backend="openxla", fullgraph=True)
    for seed in (0, 1):
        if modules := check(function, given(8, 96, norm, seed)):
            (module,) = modules
    assert [call.target for call in module.calls] == [TARGET]
    # The weight is read as it is: no copy, and no exchange beside the op.
    assert not module.copies
    assert "f32[8,16]{1,0} parameter" in module.after and "f32[96,16]{1,0} parameter" in module.after
    assert not re.search(r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter", module.after)


def test_xla_adds_what_is_too_large_for_the_op():
    """More than 512 KiB on a device."""
    (module,) = check(row_parallel_norm(MESH), given(33, 4096))
    assert [call.target for call in module.calls] == ["xla_gpu_fused_add_rms_norm"]
    assert len(re.findall(r" all-reduce(?:-start)?\(", module.after)) == 1
    (module,) = check(row_parallel_norm(MESH), given(32, 4096))
    assert [call.target for call in module.calls] == [TARGET]


def test_xla_adds_if_asked_to():
    (module,) = check(row_parallel_norm(MESH, fused_sums=False), given(8, 64))
    assert [call.target for call in module.calls] == ["xla_gpu_fused_add_rms_norm"]


def test_cpu_tensors():
    arguments = given(4, 32)
    residual = arguments[2].clone()
    got = row_parallel_norm(MESH)(*arguments[:2], residual, *arguments[3:])
    total = arguments[0] @ arguments[1].T + arguments[2]
    torch.testing.assert_close(residual, total)
    torch.testing.assert_close(got, torch.nn.functional.rms_norm(total, (32,), arguments[3], 1e-5))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({0: torch.ones(4)}, "row_parallel_norm: x: expected rank 2, got shape (4,)"),
        ({1: torch.ones(32, 3)}, f"row_parallel_norm: weight: expected shape (hidden, {16 * COUNT}), got (32, 3)"),
        (
            {0: torch.ones(4, COUNT + 1), 1: torch.ones(32, COUNT + 1)},
            f"row_parallel_norm: x: expected a size that {COUNT} devices divide, got {COUNT + 1}",
        ),
        (
            {2: torch.ones(5, 32)},
            "fused_all_reduce_rms_norm: residual: expected shape (4, 32), got (5, 32)",
        ),
    ],
)
def test_refuses(changed, message):
    arguments = [changed.get(i, value) for i, value in enumerate(given(4, 32))]
    with pytest.raises(pyxla.ArgumentError) as caught:
        row_parallel_norm(MESH)(*arguments)
    assert caught.value.message == message


def test_groups_are_those_of_the_mesh():
    """Also where the devices of a group are not adjacent, and where the axis is the first one."""
    assert groups_of(str(MESH)) == [0] * COUNT
    mesh = xs.Mesh(np.arange(COUNT), (2, COUNT // 2), ("model", "data"))
    assert groups_of(str(mesh)) == [*range(COUNT // 2)] * 2
    turned = xs.Mesh(np.arange(COUNT)[::-1], (COUNT // 2, 2), ("data", "model"))
    assert groups_of(str(turned)) == [COUNT - 2 - device // 2 * 2 for device in range(COUNT)]


def test_a_group_of_devices_that_are_not_adjacent():
    mesh = xs.Mesh(np.arange(COUNT), (2, COUNT // 2), ("model", "data"))
    arguments = given(8, 64)
    moved = [t.to(DEVICE) if isinstance(t, torch.Tensor) else t for t in arguments]
    out = row_parallel_norm(mesh)(*moved)
    torch_xla.sync(wait=True)
    x, weight, residual, norm = (t.double() for t in arguments[:4])
    total = x @ weight.T + residual
    compare("out", out.cpu(), torch.nn.functional.rms_norm(total, (64,), norm, 1e-5), roundings=64)
