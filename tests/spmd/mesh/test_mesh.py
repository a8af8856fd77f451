"""Sharded ops on a mesh of four virtual devices: right numbers, one custom call per part, no exchange, no copy."""

import re

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime
from pyxla_kernels.reshape_and_cache import cases as cache_cases
from pyxla_kernels.rotary_and_cache import cases as rotary_cases

import pyxla
from pyxla import testing
from pyxla.errors import ArgumentError
from pyxla.spmd.shard import _sharded_op
from pyxla.testing.tolerance import compare

# Two parts along "model"; along "data" every device computes the same.
MESH = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
LINE = xs.Mesh(np.arange(4), (4,), ("model",))
DEVICE = torch_xla.device()
EXCHANGES = re.compile(r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter")

# op -> cases that two devices can split: each operand absent and present; dtypes; updates in place.
PAGED = ["ragged-bf16", "window-7", "all-options", "f8-bf16"]
SHARDED = {
    "paged_attention": PAGED,
    "paged_attention.flashinfer": ["ragged-bf16"],
    "paged_attention_lse": ["lse-all-options"],
    "reshape_and_cache": ["bf16-to-itself"],
    "rotary_embedding": ["bf16-neox", "f32-interleaved"],
    "rotary_embedding_inplace": ["bf16-neox", "f32-interleaved"],
    "rotary_and_cache": ["bf16-neox", "f32-interleaved"],
    "rms_norm": ["f32-2x4096", "bf16-300x2880"],
    "rms_norm.triton": ["bf16-300x2880"],
    "fused_add_rms_norm": ["f32-2x4096"],
    "silu_and_mul": [],
    "gelu_and_mul": [],
    "simple_add": [],
}
# The cases of these ops have an odd number of rows, or three heads.
OWN = {
    "reshape_and_cache": lambda g: cache_cases.arguments(
        g, torch.bfloat16, heads=4, cache_dtype=torch.float8_e4m3fn, scaled=True
    ),
    "rotary_and_cache": lambda g: rotary_cases.arguments(
        g, torch.bfloat16, heads=(8, 4), cache_dtype=torch.float8_e4m3fn, scaled=True
    ),
    "silu_and_mul": lambda g: {"x": torch.randn(4, 64, generator=g).bfloat16()},
    "gelu_and_mul": lambda g: {"x": torch.randn(4, 64, generator=g).bfloat16()},
    "simple_add": lambda g: {name: torch.randn(4, 6, generator=g) for name in "ab"},
}


def sharded_cases():
    for name, names in SHARDED.items():
        op = pyxla.find_op(name)
        (by,) = op.shardings
        cases = [case for case in testing.cases_of(op) if case.name in names]
        assert len(cases) == len(names), name
        if name in OWN:
            cases.append(testing.Case("4", "rows or heads for each device", OWN[name]))
        for case in cases:
            yield pytest.param(op, by, case, id=f"{name}-{case.name}")


# One result, several results, updates in place with and without a result.
COMPILED = [
    "paged_attention_lse-lse-all-options",
    "rotary_embedding_inplace-bf16-neox",
    "reshape_and_cache-4",
    "rotary_and_cache-4",
    "fused_add_rms_norm-f32-2x4096",
]


def spec(op, by, argument, rank):
    """The partition spec of an argument."""
    names = [slot.name for slot in op.schema.tensors]
    dimension = op.shardings[by].operands[names.index(argument)]
    axes = [None] * rank
    if dimension is not None:
        axes[dimension] = "model"
    return tuple(axes)


def dealt(qkv, kv_heads, devices=2):
    """The queries, keys and values of the first device, then those of the second, as split weights produce them."""
    parts = qkv.split([qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    return torch.cat([part.unflatten(1, (devices, -1)) for part in parts], dim=2).flatten(1, 2)


def to_mesh(op, by, arguments, mesh=MESH):
    """The arguments on the devices, split as the op needs them."""
    if "qkv" in arguments:
        arguments = arguments | {"qkv": dealt(arguments["qkv"], arguments["kv_cache"].shape[3])}
    moved = {n: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    for name, value in moved.items():
        if isinstance(value, torch.Tensor):
            xs.mark_sharding(value, mesh, spec(op, by, name, value.dim()))
    torch_xla.sync(wait=True)
    return moved


def test_a_sharded_op_s_results_keep_their_names():
    (by,) = (op := pyxla.find_op("paged_attention_lse")).shardings
    assert _sharded_op(op, by).schema.named_results == op.schema.named_results == ("out", "lse")


def outputs(op, arguments, results):
    results = results if isinstance(results, (tuple, list)) else () if results is None else (results,)
    return (*(arguments[slot.name] for slot in op.schema.mutated), *results)


def check(op, case, call, on_mesh, arguments):
    want = testing.oracle(op, arguments)
    with pyxla.inspecting() as seen:
        got = outputs(op, on_mesh, call(**on_mesh))
        torch_xla.sync(wait=True)
    for g, w in zip(got, want, strict=True):
        compare(case.name, g.cpu(), w, roundings=case.roundings_of(g, torch_xla.runtime.device_type()))
    return seen


@pytest.mark.parametrize(("op", "by", "case"), list(sharded_cases()))
def test_lazy(op, by, case):
    """With two seeds, because the second one's graph is cached."""
    call = pyxla.shard(op, by, MESH, "model")
    for seed in (0, 1):
        arguments = case.arguments(seed)
        seen = check(op, case, call, to_mesh(op, by, arguments), arguments)
    (module,) = [m for m in seen.modules if m.calls]
    assert not EXCHANGES.search(module.after)
    # Two operands of the same size are updated in place: torch_xla may swap their buffers.
    if len(op.schema.mutated) < 2:
        assert not [copy for copy in module.copies if copy.call]
    (only,) = module.calls
    parts = [operand.shape for operand in only.operands]
    for slot, dimension in zip(op.schema.tensors, op.shardings[by].operands, strict=True):
        tensor = arguments.get(slot.name)
        if tensor is not None and dimension is not None and tensor.numel():
            sizes = list(tensor.shape)
            sizes[dimension] //= 2
            assert any(f"[{','.join(map(str, sizes))}]" in part for part in parts), (slot.name, parts)


@pytest.mark.parametrize(("op", "by", "case"), [c for c in sharded_cases() if c.id in COMPILED])
def test_compiled(op, by, case):
    torch._dynamo.reset()
    sharded = pyxla.shard(op, by, MESH, "model")
    call = torch.compile(lambda arguments: sharded(**arguments), backend="openxla", fullgraph=True)
    for seed in (0, 1):
        arguments = case.arguments(seed)
        check(op, case, lambda **named: call(named), to_mesh(op, by, arguments), arguments)


def test_operands_that_nobody_sharded():
    """They stay whole; each device takes its part, and the result is sharded."""
    norm = pyxla.shard(pyxla.find_op("rms_norm"), "rows", LINE)
    x = torch.randn(8, 64)
    on_xla = x.to(DEVICE)
    torch_xla.sync()
    with pyxla.inspecting() as seen:
        y = norm(on_xla, None)
        torch_xla.sync()
    assert torch_xla._XLAC._get_xla_sharding_spec(on_xla) in ("", "{replicated}")
    assert torch_xla._XLAC._get_xla_sharding_spec(y) == "{devices=[4,1]0,1,2,3}"
    assert not EXCHANGES.search(seen.modules[0].after)
    compare("rms_norm", y.cpu(), pyxla.find_op("rms_norm").reference(x.double(), None))


def test_an_op_that_nobody_sharded():
    """With operands that XLA copies in the background: a sharded buffer cannot be exported to wait for the copy."""
    x = torch.randn(64, 1024)
    on_xla = x.to(DEVICE)
    compare(
        "rms_norm",
        torch.ops.xla_gpu.rms_norm(on_xla, None).cpu(),
        pyxla.find_op("rms_norm").reference(x.double(), None),
    )


def attention_step(mesh):
    """A step of a decoder's attention: writes new keys and values, then attends; heads on the devices."""
    store = pyxla.shard(pyxla.find_op("reshape_and_cache"), "heads", mesh)
    attend = pyxla.shard(pyxla.find_op("paged_attention"), "heads", mesh)

    def step(query, key, value, cache, slots, lengths, tables, starts, count):
        store(key, value, cache, slots)
        return attend(query, cache, lengths, tables, starts, count, 0.25)

    return step


@pytest.mark.parametrize("mode", ["lazy", "compiled"])
def test_a_step_of_two_ops(mode):
    """Parts go from op to op without an exchange, and the cache without a copy; four devices with one kv head each."""
    torch.manual_seed(0)
    arguments = (
        *(torch.randn(3, heads, 16) for heads in (8, 4, 4)),
        torch.randn(2, 6, 16, 4, 16),
        torch.tensor([5, 21, 70], dtype=torch.int32),
        torch.tensor([6, 6, 7], dtype=torch.int32),
        torch.tensor([[0], [1], [4]], dtype=torch.int32),
        torch.arange(4, dtype=torch.int32),
        torch.tensor([3], dtype=torch.int32),
    )
    cpu = [t.double() if t.is_floating_point() else t for t in arguments]
    pyxla.find_op("reshape_and_cache").reference(cpu[1], cpu[2], cpu[3], cpu[4])
    want = pyxla.find_op("paged_attention").reference(cpu[0], cpu[3], *cpu[5:], 0.25)

    step = attention_step(LINE)
    call = torch.compile(step, backend="openxla", fullgraph=True) if mode == "compiled" else step
    on_xla = [t.to(DEVICE) for t in arguments]
    for tensor in on_xla[:3]:
        xs.mark_sharding(tensor, LINE, (None, "model", None))
    xs.mark_sharding(on_xla[3], LINE, (None, None, None, "model", None))
    torch_xla.sync(wait=True)
    with pyxla.inspecting() as seen:
        got = call(*on_xla)
        torch_xla.sync(wait=True)
    compare("attention", got.cpu(), want)
    compare("cache", on_xla[3].cpu(), cpu[3])
    (module,) = [m for m in seen.modules if m.calls]
    assert [c.target for c in module.calls] == ["xla_gpu_reshape_and_cache", "xla_gpu_paged_attention"]
    assert not module.copies and not EXCHANGES.search(module.after)
    call(*on_xla)
    torch_xla.sync(wait=True)
    with pyxla.assert_no_recompilation():
        for _ in range(6):
            call(*on_xla)
            torch_xla.sync(wait=True)


@pytest.mark.parametrize(
    ("name", "by", "shapes", "message"),
    [
        ("rms_norm", "rows", [(6, 8)], "rms_norm: x: expected a size that 4 devices divide in dimension -2, got 6"),
        ("rms_norm", "rows", [(8,)], "rms_norm: x: expected a dimension -2 to split, got shape (8,)"),
        ("simple_add", "rows", [(4,), (8,)], "simple_add: b: expected shape (1,), got (2,)"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_refuses_what_the_devices_do_not_divide(name, by, shapes, message, device):
    op = pyxla.find_op(name)
    tensors = [torch.ones(shape).to(DEVICE if device == "xla" else "cpu") for shape in shapes]
    with pytest.raises(ArgumentError) as caught:
        pyxla.shard(op, by, LINE)(*tensors, *([None] if name == "rms_norm" else []))
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((None,), {"epsilon": 1.0}, "Unknown keyword argument 'epsilon'"),
        ((None,), {"weight": None}, "'weight' specified both as positional and keyword argument"),
        ((None, 1.0, 2.0), {}, "expected at most 5 argument"),
        ((), {}, "missing value for argument 'weight'"),
    ],
)
def test_refuses_other_arguments_than_the_op(arguments, named, message):
    """It must not drop unknown names: a misspelt attribute would keep its default."""
    norm = pyxla.shard(pyxla.find_op("rms_norm"), "rows", LINE)
    x = torch.ones(8, 8, device=DEVICE)
    assert norm(x, weight=None, eps=1.0).cpu()[0, 0].item() == pytest.approx(0.5**0.5)
    with pytest.raises(RuntimeError, match=message):
        norm(x, *arguments, **named)


def test_shape_of_numpys_numbers():
    mesh = xs.Mesh(np.arange(4), (np.int64(4),), ("data",))
    x = torch.randn(8, 8)
    got = pyxla.shard(pyxla.find_op("rms_norm"), "rows", mesh)(x.to(DEVICE), None).cpu()
    torch.testing.assert_close(got, pyxla.find_op("rms_norm").reference(x, None))


def test_has_no_gradient():
    x = torch.ones(8, 8, device=DEVICE, requires_grad=True)
    y = pyxla.shard(pyxla.find_op("rms_norm"), "rows", LINE)(x, None)
    with pytest.raises(pyxla.DefinitionError, match="rms_norm_by_rows: gradient: expected one, got none"):
        y.sum().backward()


def test_inspect_shows_what_was_compiled_before():
    """On a mesh torch_xla counts runs under another name, which pyxla.inspect must know."""
    norm = pyxla.shard(pyxla.find_op("rms_norm"), "rows", LINE)
    x = torch.randn(12, 16).to(DEVICE)
    for _ in range(2):
        (call,) = pyxla.inspect(norm, x, None).calls()
        assert call.operands[0].shape.startswith("f32[3,16]")
