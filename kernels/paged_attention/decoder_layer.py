"""The step of paged_attention's benchmark: one layer of a Llama decoder, one new token for each sequence."""

import torch
from pyxla_kernels._paged_attention.benches import batch
from torch.nn.functional import linear

from pyxla.benchmark import Step, nbytes

EPS = 1e-5
BLOCK_SIZE = 16
# The arguments that paged_attention takes besides query and cache.
BATCH = ("context_lens", "block_tables", "query_start_loc", "num_seqs", "scale")


def layer(hidden, norm, qkv, out, mlp_norm, gate_up, down, cos_sin, positions, slots, kv_cache, **batch):
    """The residual stream after the layer, and the attention, which hardly changes the residual stream."""
    ops = torch.ops.xla_gpu
    heads = linear(ops.rms_norm(hidden, norm, EPS), qkv).view(len(hidden), -1, kv_cache.shape[-1])
    query = ops.rotary_and_cache(positions, heads, cos_sin, kv_cache, slots)
    attention = ops.paged_attention(query, kv_cache, **batch)
    hidden = hidden + linear(attention.flatten(1), out)
    x = ops.silu_and_mul(linear(ops.rms_norm(hidden, mlp_norm, EPS), gate_up))
    return hidden + linear(x, down), attention


def arguments(
    generator: torch.Generator,
    seqs: int,
    context: int,
    dtype: torch.dtype,
    *,
    hidden: int,
    inner: int,
    heads: tuple[int, int],
    d: int,
) -> dict:
    """The arguments of `layer`; the last token of each context is the new one.

    Args:
        heads: query and kv heads.
    """

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    def weight(rows: int, columns: int) -> torch.Tensor:
        return normal(rows, columns).mul_(columns**-0.5).to(dtype)

    attention = batch(generator, [(1, context)] * seqs, dtype, heads=heads, d=d, block_size=BLOCK_SIZE)
    last = torch.full((seqs,), context - 1, dtype=torch.int32)
    blocks = attention["block_tables"][:, (context - 1) // BLOCK_SIZE]
    angles = torch.arange(context)[:, None] * 5e5 ** -(torch.arange(0, d, 2) / d)
    return {
        "hidden": normal(seqs, hidden).to(dtype),
        "norm": (1 + normal(hidden) / 8).to(dtype),
        "qkv": weight((heads[0] + 2 * heads[1]) * d, hidden),
        "out": weight(hidden, heads[0] * d),
        "mlp_norm": (1 + normal(hidden) / 8).to(dtype),
        "gate_up": weight(2 * inner, hidden),
        "down": weight(hidden, inner),
        "cos_sin": torch.cat([angles.cos(), angles.sin()], dim=-1),
        "positions": last,
        "slots": blocks * BLOCK_SIZE + last % BLOCK_SIZE,
        "kv_cache": attention["kv_cache"],
        **{name: attention[name] for name in BATCH},
    }


def moved_bytes(a: dict) -> int:
    """Each weight, and each key and value in sight once; the residual stream in and out."""
    seen = 2 * int(a["context_lens"].sum()) * a["kv_cache"].shape[3:].numel() * a["kv_cache"].itemsize
    return seen + nbytes(*(a[name] for name in ("qkv", "out", "gate_up", "down")), a["hidden"], a["hidden"])


def operations(a: dict) -> int:
    """Two for each weight and token; two products of length d for each head and key in sight."""
    products = sum(a[name].numel() for name in ("qkv", "out", "gate_up", "down"))
    return 2 * len(a["hidden"]) * products + 4 * a["out"].shape[1] * int(a["context_lens"].sum())


def step(name: str, why: str, device: str, *batch: object, **sizes: object) -> Step:
    """A step for one device; batch and sizes as in `arguments`."""
    return Step(
        name,
        why,
        build=lambda g: arguments(g, *batch, **sizes),
        run=layer,
        bytes=moved_bytes,
        operations=operations,
        ops=("rms_norm", "rotary_and_cache", "silu_and_mul"),
        devices=(device,),
    )


LLAMA_3_8B = {"hidden": 4096, "inner": 14336, "heads": (32, 8), "d": 128}
SMALL = {"hidden": 512, "inner": 1024, "heads": (8, 2), "d": 64}

STEPS = [
    step("bf16-layer-64x4096", "a layer of Llama 3 8B, long contexts", "cuda", 64, 4096, torch.bfloat16, **LLAMA_3_8B),
    step("bf16-layer-64x1024", "the same, short contexts", "cuda", 64, 1024, torch.bfloat16, **LLAMA_3_8B),
    step("bf16-layer-1x4096", "the same, one user", "cuda", 1, 4096, torch.bfloat16, **LLAMA_3_8B),
    step("f32-layer-16x1024", "a small layer", "cpu", 16, 1024, torch.float32, **SMALL),
]
