"""Inputs of rotary_embedding and rotary_embedding_inplace, for their test and benchmark; each with its reason."""

import torch

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def angle_table(max_position: int, rot_dim: int) -> torch.Tensor:
    """The cos_sin_cache of a model, float32."""
    frequency = 10000.0 ** (-torch.arange(0, rot_dim, 2, dtype=torch.float64) / max(rot_dim, 1))
    angle = torch.arange(max_position, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=-1).float()


def arguments(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    tokens: int = 7,
    heads: tuple[int, int] = (4, 2),
    d: int = 64,
    rot_dim: int | None = None,
    max_position: int = 50,
    cache_dtype: torch.dtype | None = None,
    position_dtype: torch.dtype = torch.int64,
    is_neox: bool = True,
) -> dict:
    """Positions in any order, the first and the last row of the table among them; each head has its own size.

    Args:
        heads: of query and of key.
        rot_dim: d, if None.
        cache_dtype: query's, if None.
    """
    query, key = (
        torch.randn(tokens, count, d, generator=generator) * torch.logspace(-1, 1, count)[:, None] for count in heads
    )
    positions = torch.randint(0, max_position, (tokens,), generator=generator)
    positions[:1], positions[-1:] = max_position - 1, 0
    return {
        "positions": positions.to(position_dtype),
        "query": query.to(dtype),
        "key": key.to(dtype),
        "cos_sin_cache": angle_table(max_position, d if rot_dim is None else rot_dim).to(cache_dtype or dtype),
        "is_neox": is_neox,
    }


def torch_rotary_embedding(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_cache: torch.Tensor, is_neox: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's own ops in the same dtype, for whole heads."""
    cos, sin = (half.to(query.dtype)[:, None] for half in cos_sin_cache[positions].chunk(2, dim=-1))

    def rotated(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=-1) if is_neox else (x[..., ::2], x[..., 1::2])
        pair = (a * cos - b * sin, b * cos + a * sin)
        return torch.cat(pair, dim=-1) if is_neox else torch.stack(pair, dim=-1).flatten(-2)

    return rotated(query), rotated(key)


CASES = [
    *(
        Case(
            f"{name}-{style}",
            "whole vectors",
            lambda g, dtype=dtype, style=style: arguments(g, dtype, is_neox=style == "neox"),
            peer=torch_rotary_embedding,
        )
        for name, dtype in DTYPES.items()
        for style in ("neox", "interleaved")
    ),
    *(
        Case(
            f"bf16-{style}-partial",
            "the rest of each head stays; one kv head",
            lambda g, style=style: arguments(
                g, torch.bfloat16, heads=(3, 1), d=80, rot_dim=32, is_neox=style == "neox"
            ),
        )
        for style in ("neox", "interleaved")
    ),
    *(
        Case(
            f"f16-{style}-d-7",
            "an odd head of which no vector fits: one pair at a time",
            lambda g, style=style: arguments(g, torch.float16, d=7, rot_dim=6, is_neox=style == "neox"),
        )
        for style in ("neox", "interleaved")
    ),
    Case(
        "bf16-table-f32-int32",
        "a table of float32; the other dtype of positions",
        lambda g: arguments(g, torch.bfloat16, cache_dtype=torch.float32, position_dtype=torch.int32),
        peer=torch_rotary_embedding,
    ),
    Case(
        "bf16-300-tokens",
        "several pieces of the parallel loop, and more than one thread block",
        lambda g: arguments(g, torch.bfloat16, tokens=300, heads=(8, 2), d=128),
        peer=torch_rotary_embedding,
    ),
    Case("f32-no-token", "nothing to rotate", lambda g: arguments(g, torch.float32, tokens=0)),
    Case("f32-no-key-head", "queries alone", lambda g: arguments(g, torch.float32, heads=(2, 0))),
    Case("f32-rot-dim-0", "all of each head stays", lambda g: arguments(g, torch.float32, rot_dim=0)),
]


def changed(generator: torch.Generator, **changes) -> dict:
    """Good arguments with some of them replaced."""
    return arguments(generator, torch.float32, tokens=3, d=8, max_position=10) | changes


def bad_inputs(op: str) -> list[BadInput]:
    """What both ops refuse, with the op's name in the message."""
    return [
        BadInput(
            "query-dtype",
            lambda g: changed(g, query=torch.ones(3, 4, 8, dtype=torch.int32)),
            f"{op}: query: expected dtype float32 or bfloat16 or float16, got int32",
        ),
        BadInput(
            "query-rank",
            lambda g: changed(g, query=torch.ones(3, 32)),
            f"{op}: query: expected rank 3, got shape (3, 32)",
        ),
        BadInput(
            "positions-dtype",
            lambda g: changed(g, positions=torch.zeros(3)),
            f"{op}: positions: expected dtype int32 or int64, got float32",
        ),
        BadInput(
            "positions-shape",
            lambda g: changed(g, positions=torch.zeros(2, dtype=torch.int64)),
            f"{op}: positions: expected shape (3,), got (2,)",
        ),
        BadInput(
            "key-dtype",
            lambda g: changed(g, key=torch.ones(3, 2, 8, dtype=torch.float16)),
            f"{op}: key: expected dtype float32, got float16",
        ),
        BadInput(
            "key-rank", lambda g: changed(g, key=torch.ones(3, 16)), f"{op}: key: expected rank 3, got shape (3, 16)"
        ),
        BadInput(
            "key-shape",
            lambda g: changed(g, key=torch.ones(3, 2, 4)),
            f"{op}: key: expected shape (3, 2, 8), got (3, 2, 4)",
        ),
        BadInput(
            "table-dtype",
            lambda g: changed(g, cos_sin_cache=torch.ones(10, 8, dtype=torch.bfloat16)),
            f"{op}: cos_sin_cache: expected dtype float32, got bfloat16",
        ),
        BadInput(
            "table-rank",
            lambda g: changed(g, cos_sin_cache=torch.ones(10)),
            f"{op}: cos_sin_cache: expected rank 2, got shape (10,)",
        ),
        BadInput(
            "table-odd",
            lambda g: changed(g, cos_sin_cache=torch.ones(10, 7)),
            f"{op}: cos_sin_cache: expected an even last dimension of at most 8, got 7",
        ),
        BadInput(
            "table-too-wide",
            lambda g: changed(g, cos_sin_cache=torch.ones(10, 10)),
            f"{op}: cos_sin_cache: expected an even last dimension of at most 8, got 10",
        ),
        BadInput(
            "position-too-large",
            lambda g: changed(g, positions=torch.tensor([0, 9, 10])),
            f"{op}: positions: expected a position in [0, 10), got 10 at token 2",
            at_run_time=True,
        ),
        BadInput(
            "position-negative",
            lambda g: changed(g, positions=torch.tensor([0, -1, 1], dtype=torch.int32)),
            f"{op}: positions: expected a position in [0, 10), got -1 at token 1",
            at_run_time=True,
        ),
    ]


BAD_INPUTS = bad_inputs("rotary_embedding")


def bench(name: str, tokens: int, why: str, *devices: str, is_neox: bool = True) -> Bench:
    """32 query and 8 kv heads of 128."""
    return Bench(
        f"{name}-{tokens}",
        why,
        lambda g: arguments(g, torch.bfloat16, tokens=tokens, heads=(32, 8), d=128, max_position=8192, is_neox=is_neox),
        # Each token's row of the table is counted as read once.
        bytes=lambda a: 2 * nbytes(a["query"], a["key"]) + nbytes(a["positions"]) + tokens * 128 * 2,
        # Two products and a sum for each element.
        operations=lambda a: 3 * (a["query"].numel() + a["key"].numel()),
        peer=torch_rotary_embedding,
        devices=devices,
    )


BENCHES = [
    bench("bf16-neox", 16384, "a prefill of 16384 tokens", "cuda"),
    bench("bf16-interleaved", 16384, "as above, the other pairs", "cuda", is_neox=False),
    bench("bf16-neox", 64, "a decode step of 64 sequences: latency", "cuda", "cpu"),
    bench("bf16-neox", 1024, "a prefill of 1024 tokens", "cpu"),
]
