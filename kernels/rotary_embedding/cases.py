"""Inputs of rotary_embedding and rotary_embedding_inplace, for their test and benchmark; each with its reason."""

import torch
from pyxla_kernels._rotary.cases import angle_table, bad_angles, drawn_positions, torch_rotated

from pyxla.benchmark import Bench, nbytes
from pyxla.testing import BadInput, Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


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
    """Random positions that include the first and last row of the table; each head's values have another magnitude.

    Args:
        heads: number of query heads and of key heads.
        rot_dim: d, if None.
        cache_dtype: query's, if None.
    """
    query, key = (
        torch.randn(tokens, count, d, generator=generator) * torch.logspace(-1, 1, count)[:, None] for count in heads
    )
    table = angle_table(max_position, d if rot_dim is None else rot_dim)
    return {
        "positions": drawn_positions(generator, tokens, max_position, position_dtype),
        "query": query.to(dtype),
        "key": key.to(dtype),
        "cos_sin_cache": table.to(cache_dtype or dtype),
        "is_neox": is_neox,
    }


def torch_rotary_embedding(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_cache: torch.Tensor, is_neox: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by torch's own ops in the same dtype, where rot_dim is d."""
    query, key = (torch_rotated(x, positions, cos_sin_cache, is_neox) for x in (query, key))
    return query, key


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
            "the rest of each head is not rotated; one kv head",
            lambda g, style=style: arguments(
                g, torch.bfloat16, heads=(3, 1), d=80, rot_dim=32, is_neox=style == "neox"
            ),
        )
        for style in ("neox", "interleaved")
    ),
    *(
        Case(
            f"f16-{style}-d-7",
            "an odd head that no vector divides: one pair at a time",
            lambda g, style=style: arguments(g, torch.float16, d=7, rot_dim=6, is_neox=style == "neox"),
        )
        for style in ("neox", "interleaved")
    ),
    Case(
        "bf16-table-f32-int32",
        "a float32 table; int32 positions",
        lambda g: arguments(g, torch.bfloat16, cache_dtype=torch.float32, position_dtype=torch.int32),
        peer=torch_rotary_embedding,
    ),
    Case(
        "bf16-300-tokens",
        "several pieces of the parallel loop, and more than one CTA",
        lambda g: arguments(g, torch.bfloat16, tokens=300, heads=(8, 2), d=128),
        peer=torch_rotary_embedding,
    ),
    Case("f32-no-token", "nothing to rotate", lambda g: arguments(g, torch.float32, tokens=0)),
    Case("f32-no-key-head", "only queries", lambda g: arguments(g, torch.float32, heads=(2, 0))),
    Case("f32-rot-dim-0", "nothing is rotated", lambda g: arguments(g, torch.float32, rot_dim=0)),
]
# Both ops take the same arguments.
ROTARY_EMBEDDING_INPLACE_CASES = CASES


def changed(generator: torch.Generator, **changes) -> dict:
    """Good arguments with some of them replaced."""
    return arguments(generator, torch.float32, tokens=3, d=8, max_position=10) | changes


def bad_inputs(op: str) -> list[BadInput]:
    """Inputs that both ops reject, with the op's name in the message."""
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
        *bad_angles(op, changed),
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
    bench("bf16-interleaved", 16384, "as above, interleaved pairs", "cuda", is_neox=False),
    bench("bf16-neox", 64, "a decode step of 64 sequences: latency", "cuda", "cpu"),
    bench("bf16-neox", 1024, "a prefill of 1024 tokens", "cpu"),
]
