"""fused_all_reduce_rms_norm on a mesh: right numbers, the same bits on each device, and no other exchange."""

import re

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime
from pyxla_kernels.fused_all_reduce_rms_norm import cases

import pyxla
from pyxla import testing
from pyxla.testing.tolerance import compare

COUNT = torch_xla.runtime.global_runtime_device_count()
DEVICE = torch_xla.device()
OP = pyxla.find_op("fused_all_reduce_rms_norm")
EXCHANGES = re.compile(r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter")
# All devices, and pairs of them: then each group has its own parts' sum.
MESHES = {"all": (1, COUNT)} | ({"pairs": (COUNT // 2, 2)} if COUNT > 2 else {})
SHAPES = ["2x3x5", "4x2x3x64", "2x2x4096", "2x2x0", "2x0x64"]


def mesh_of(name):
    """The mesh, and the group of each device."""
    mesh = xs.Mesh(np.arange(COUNT), MESHES[name], ("data", "model"))
    return mesh, [device // MESHES[name][1] for device in range(COUNT)]


def given(mesh, groups, shape, dtype=torch.float32, seed=0):
    """Arguments on the CPU and on the devices: a part for each device of a group."""
    generator = torch.Generator().manual_seed(seed)
    parts = mesh.shape()["model"]
    arguments = cases.arguments(generator, (parts, *shape), dtype, dtype) | {"groups": groups, "timeout": 30.0}
    moved = {n: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    for name in ("x", "residual", "weight"):
        axes = ["model" if name == "x" else None, *[None] * (moved[name].dim() - 1)]
        xs.mark_sharding(moved[name], mesh, tuple(axes))
    torch_xla.sync(wait=True)
    return arguments, moved


def check(case, arguments, moved, out):
    want = testing.oracle(OP, arguments | {"groups": []})
    for name, got, expected in zip(("residual", "out"), (moved["residual"], out), want, strict=True):
        compare(f"{case} {name}", got.cpu(), expected)


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_lazy(mesh_name, shape, dtype):
    mesh, groups = mesh_of(mesh_name)
    call = pyxla.shard(OP, "parts", mesh, "model")
    for seed in (0, 1):
        arguments, moved = given(mesh, groups, cases.SHAPES[shape][0][1:], dtype, seed)
        with pyxla.inspecting() as seen:
            out = call(**moved)
            torch_xla.sync(wait=True)
        check(shape, arguments, moved, out)
    modules = [m for m in seen.modules if m.calls]
    if not out.numel():
        assert not modules  # XLA drops a call without elements, on all devices.
        return
    (module,) = modules
    assert [c.target for c in module.calls] == ["xla_gpu_fused_all_reduce_rms_norm"]
    assert not EXCHANGES.search(module.after)
    assert not [copy for copy in module.copies if copy.call]


@pytest.mark.parametrize("mesh_name", MESHES)
def test_compiled(mesh_name):
    torch._dynamo.reset()
    mesh, groups = mesh_of(mesh_name)
    sharded = pyxla.shard(OP, "parts", mesh, "model")
    call = torch.compile(lambda arguments: sharded(**arguments), backend="openxla", fullgraph=True)
    for seed in (0, 1):
        arguments, moved = given(mesh, groups, (6, 96), torch.bfloat16, seed)
        check("compiled", arguments, moved, call(moved))


def test_the_same_bits_on_each_device():
    """The sums' order is the devices', on each of them."""
    mesh, groups = mesh_of("all")
    _, moved = given(mesh, groups, (16, 256))
    out = pyxla.shard(OP, "parts", mesh, "model")(**moved)
    torch_xla.sync(wait=True)
    for tensor in (out, moved["residual"]):
        ((*shards,),) = torch_xla._XLAC._get_local_shards([tensor])
        copies = [shard[0] if isinstance(shard, tuple) else shard for shard in shards]
        assert len(copies) == COUNT
        assert all(copy.cpu().equal(copies[0].cpu()) for copy in copies)


def test_many_layers_and_steps():
    """Each device is a call ahead of another now and then; several steps are submitted before one is read."""
    mesh, groups = mesh_of("all")
    call = pyxla.shard(OP, "parts", mesh, "model")
    arguments, moved = given(mesh, groups, (8, 128))
    wide = arguments["residual"].double()
    for _ in range(5):
        for _ in range(40):
            out = call(**moved)
            want = OP.reference(arguments["x"].double(), wide, arguments["weight"].double(), [])
        torch_xla.sync()
    compare("out", out.cpu(), want, roundings=400)
    compare("residual", moved["residual"].cpu(), wide, roundings=400)


def test_products_between_the_sums():
    """Products run on XLA's threads, of which each device that waits holds one."""
    mesh, groups = mesh_of("all")
    call = pyxla.shard(OP, "parts", mesh, "model")
    arguments, moved = given(mesh, groups, (64, 512))
    weight = torch.randn(512, 512, generator=torch.Generator().manual_seed(2)) / 512**0.5
    on_xla = weight.to(DEVICE)
    wide, weight, x, x_wide = arguments["residual"].double(), weight.double(), moved["x"], arguments["x"].double()
    for _ in range(6):
        out = call(**moved | {"x": x})
        x = moved["x"] + torch.matmul(out, on_xla)
        want = OP.reference(x_wide, wide, arguments["weight"].double(), [])
        x_wide = arguments["x"].double() + want @ weight
    torch_xla.sync()
    torch.testing.assert_close(out.cpu().double(), want, rtol=1e-3, atol=1e-3)


def test_calls_that_do_not_depend_on_one_another():
    """XLA may run them at the same time, and in another order on each device; each has a channel."""
    mesh, groups = mesh_of("all")
    call = pyxla.shard(OP, "parts", mesh, "model")
    pairs = [given(mesh, groups, (4, 64 * (1 + channel)), seed=channel) for channel in range(3)]
    for _ in range(4):
        outs = [call(**moved, channel=channel) for channel, (_, moved) in enumerate(pairs)]
    torch_xla.sync(wait=True)
    for (arguments, moved), out in zip(pairs, outs, strict=True):
        wide = arguments["residual"].double()
        for _ in range(4):
            want = OP.reference(arguments["x"].double(), wide, arguments["weight"].double(), [])
        compare("out", out.cpu(), want, roundings=16)
        compare("residual", moved["residual"].cpu(), wide, roundings=16)
