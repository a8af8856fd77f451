"""Inputs of fused_decoder_layer_rotary; each with its reason. cases.py re-exports them."""

import torch
from pyxla_kernels._kv_cache.cases import cache_and_slots, torch_store
from pyxla_kernels._rotary.cases import angle_table, drawn_positions, torch_rotated
from pyxla_kernels.fused_decoder_layer.inputs import ROUNDINGS, arguments, changed, torch_fused_decoder_layer

from pyxla.testing import BadInput, Case

# tokens, width, hidden, inner, query heads, kv heads, d
ROTARY_SHAPES = {
    "1x32": (
        (1, 256, 256, 256, 1, 1, 32),
        "one token; the smallest head: queries, keys and values are one tile",
    ),
    "17x128": (
        (17, 256, 512, 256, 4, 2, 128),
        "a head over four tiles, the last tiles without a third head; rows that no token fills",
    ),
    "64x64": ((64, 256, 256, 256, 5, 1, 64), "as many tokens as a product has rows; one kv head"),
    "9x96": ((9, 256, 256, 256, 2, 2, 96), "a head over three tiles; as many kv heads as query heads"),
    "33x256": ((33, 256, 256, 256, 26, 2, 256), "more tiles than pairs of CTAs: a pair has two; heads of 256"),
    "0x64": ((0, 256, 256, 256, 2, 1, 64), "no tokens"),
}


def rotary_arguments(
    generator: torch.Generator,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    table_dtype: torch.dtype = torch.float32,
    index_dtype: torch.dtype = torch.int32,
    **options,
) -> dict:
    """The arguments of fused_decoder_layer_rotary.

    Args:
        table_dtype: dtype of cos_sin_cache.
        index_dtype: dtype of positions and slots.
        options: keyword arguments of `cache_and_slots`.
    """
    tokens, width, hidden, inner, heads, kv_heads, d = shape
    made = arguments(generator, (tokens, width, hidden, inner, (heads + 2 * kv_heads) * d), dtype)
    return made | rotary_operands(
        generator, tokens, kv_heads, d, dtype, table_dtype=table_dtype, index_dtype=index_dtype, **options
    )


def rotary_operands(
    generator: torch.Generator,
    tokens: int,
    kv_heads: int,
    d: int,
    dtype: torch.dtype,
    *,
    table_dtype: torch.dtype,
    index_dtype: torch.dtype,
    **options,
) -> dict:
    """The arguments that fused_decoder_layer does not have; the parameters are those of rotary_arguments."""
    stored = cache_and_slots(
        generator, dtype, tokens, kv_heads, d, blocks=10, block_size=8, slot_dtype=index_dtype, **options
    )
    return {
        "positions": drawn_positions(generator, tokens, 50, index_dtype),
        "cos_sin_cache": angle_table(50, d).to(table_dtype),
        "kv_cache": stored["kv_cache"],
        "slot_mapping": stored["slot_mapping"],
    }


def torch_fused_decoder_layer_rotary(
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    **products: torch.Tensor | float,
) -> torch.Tensor:
    """The same by torch's own ops in the same dtype."""
    d = cos_sin_cache.shape[1]
    by_head = kv_cache.unflatten(3, (-1, d)) if kv_cache.dim() == 4 else kv_cache
    kv_heads = by_head.shape[3]
    qkv = torch_fused_decoder_layer(**products).unflatten(1, (-1, d))
    query, key, value = qkv.split([qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    query, key = (torch_rotated(x, positions, cos_sin_cache, True) for x in (query, key))
    kept = slot_mapping >= 0
    torch_store(key[kept], value[kept], by_head, slot_mapping[kept].long())
    return query


def _rotary_case(name: str, why: str, shape: str, dtype: torch.dtype, **options) -> Case:
    return Case(
        name,
        why,
        lambda g: rotary_arguments(g, ROTARY_SHAPES[shape][0], dtype, **options),
        peer=torch_fused_decoder_layer_rotary,
        roundings=ROUNDINGS[dtype],
    )


FUSED_DECODER_LAYER_ROTARY_CASES = [
    *(_rotary_case(f"rotary-bf16-{name}", why, name, torch.bfloat16) for name, (_, why) in ROTARY_SHAPES.items()),
    *(
        _rotary_case(f"rotary-f16-{name}", "the other dtype", name, torch.float16)
        for name in ("17x128", "64x64", "33x256")
    ),
    _rotary_case(
        "rotary-bf16-table-int64",
        "a bfloat16 table; int64 positions and slots",
        "17x128",
        torch.bfloat16,
        table_dtype=torch.bfloat16,
        index_dtype=torch.int64,
    ),
    _rotary_case(
        "rotary-f16-merged",
        "the cache's heads and d in one dimension; a table of float16",
        "17x128",
        torch.float16,
        table_dtype=torch.float16,
        merged=True,
    ),
    Case(
        "rotary-bf16-left-out",
        "no token has a slot: the cache is unchanged, and every query is rotated",
        lambda g: (
            rotary_arguments(g, ROTARY_SHAPES["9x96"][0], torch.bfloat16)
            | {"slot_mapping": torch.full((9,), -1, dtype=torch.int32)}
        ),
        peer=torch_fused_decoder_layer_rotary,
        roundings=ROUNDINGS[torch.bfloat16],
    ),
]


def _bad_rotary(name: str, message: str, *, at_run_time: bool = False, **changes) -> BadInput:
    """Three tokens, four query heads and two kv heads of 32, and a cache of ten blocks of eight."""
    return BadInput(
        name,
        lambda g: changed(rotary_arguments(g, (3, 256, 256, 256, 4, 2, 32), torch.bfloat16), **changes),
        f"fused_decoder_layer_rotary: {message}",
        at_run_time,
    )


FUSED_DECODER_LAYER_ROTARY_BAD_INPUTS = [
    _bad_rotary(
        "rotary-tokens", "attention: expected at most 64 tokens, got 65", attention=(65, 256), residual=(65, 256)
    ),
    _bad_rotary("rotary-table-rank", "cos_sin_cache: expected rank 2, got shape (32,)", cos_sin_cache=(32,)),
    _bad_rotary(
        "rotary-d",
        "cos_sin_cache: expected a last dimension that is a multiple of 32, got 48",
        cos_sin_cache=(50, 48),
    ),
    _bad_rotary(
        "rotary-no-d", "cos_sin_cache: expected a last dimension that is a multiple of 32, got 0", cos_sin_cache=(50, 0)
    ),
    _bad_rotary(
        "rotary-columns", "qkv_proj: expected rows in a multiple of cos_sin_cache's 32, got 264", qkv_proj=(264, 256)
    ),
    _bad_rotary(
        "rotary-no-heads", "qkv_proj: expected more heads than the 4 of keys and values, got 4", qkv_proj=(128, 256)
    ),
    _bad_rotary(
        "rotary-table-dtype",
        "cos_sin_cache: expected dtype bfloat16 or float32, got float16",
        cos_sin_cache=torch.ones(50, 32, dtype=torch.float16),
    ),
    _bad_rotary(
        "rotary-positions", "positions: expected shape (3,), got (2,)", positions=torch.zeros(2, dtype=torch.int32)
    ),
    _bad_rotary(
        "rotary-cache-float8",
        "kv_cache: expected dtype bfloat16, got float8_e4m3fn",
        kv_cache=torch.ones(2, 10, 8, 2, 32).to(torch.float8_e4m3fn),
    ),
    _bad_rotary("rotary-cache-rank", "kv_cache: expected rank 4 or 5, got shape (2, 80, 64)", kv_cache=(2, 80, 64)),
    _bad_rotary(
        "rotary-cache-keys",
        "kv_cache: expected a first dimension of 2, keys and values, got 1",
        kv_cache=(1, 10, 8, 2, 32),
    ),
    _bad_rotary(
        "rotary-cache-d",
        "kv_cache: expected heads of cos_sin_cache's size 32, got shape (2, 10, 8, 2, 64)",
        kv_cache=(2, 10, 8, 2, 64),
    ),
    _bad_rotary(
        "rotary-slots", "slot_mapping: expected dtype int32 or int64, got float32", slot_mapping=torch.zeros(3)
    ),
    _bad_rotary(
        "rotary-position-too-large",
        "positions: expected a position in [0, 50), got 50 at token 2",
        positions=torch.tensor([0, 1, 50], dtype=torch.int32),
        at_run_time=True,
    ),
    _bad_rotary(
        "rotary-slot-too-large",
        "slot_mapping: expected -1 or a slot in [0, 80), got 80 at token 1",
        slot_mapping=torch.tensor([0, 80, -1], dtype=torch.int32),
        at_run_time=True,
    ),
]
