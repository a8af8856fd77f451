"""What `devtool fuzz` draws for both ops: any number of tokens, as the smallest of the tests' cases has none."""

import functools
from collections.abc import Callable

import torch
from pyxla_kernels.fused_decoder_layer.inputs import (
    ROUNDINGS,
    WEIGHTS,
    activations,
    arguments,
    torch_fused_decoder_layer,
)
from pyxla_kernels.fused_decoder_layer.rotary_cases import rotary_operands, torch_fused_decoder_layer_rotary

from pyxla.testing import Case

# Two tokens may not share a slot: it is undefined which one the slot gets.
FUZZ_KEEPS = ("slot_mapping",)
TOKENS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 0)
# Three heads, and keys and values of two, of 96 elements.
MOST_COLUMNS = (3 + 2 * 2) * 96


def fuzz(draw: Callable) -> Case:
    """Any tokens, the smallest sizes or one that is twice as large.

    Args:
        draw: hypothesis', which draws from a strategy.
    """
    from hypothesis import strategies as st

    tokens, sizes, dtype = _draw_common(draw)
    columns = draw(st.sampled_from((8, 16, 64, 264, None)))

    def build(generator: torch.Generator) -> dict:
        made = _few_tokens(generator, tokens, *sizes, columns or 8, dtype)
        return made if columns else made | {"qkv_proj": None}

    return Case("drawn", "any tokens", build, peer=torch_fused_decoder_layer, roundings=ROUNDINGS[dtype])


def fused_decoder_layer_rotary_fuzz(draw: Callable) -> Case:
    """As `fuzz`, with any heads."""
    from hypothesis import strategies as st

    tokens, sizes, dtype = _draw_common(draw)
    heads, kv_heads = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((1, 2)))
    d = draw(st.sampled_from((32, 64, 96)))
    options = {
        "table_dtype": draw(st.sampled_from((torch.float32, dtype))),
        "index_dtype": draw(st.sampled_from((torch.int32, torch.int64))),
        "merged": draw(st.booleans()),
    }

    def build(generator: torch.Generator) -> dict:
        made = _few_tokens(generator, tokens, *sizes, (heads + 2 * kv_heads) * d, dtype)
        return made | rotary_operands(generator, tokens, kv_heads, d, dtype, **options)

    return Case("drawn", "any tokens", build, peer=torch_fused_decoder_layer_rotary, roundings=ROUNDINGS[dtype])


def _draw_common(draw: Callable) -> tuple[int, tuple[int, int, int], torch.dtype]:
    """The tokens; width, hidden and inner; the dtype."""
    from hypothesis import strategies as st

    sizes = [256, 256, 256]
    for place in draw(st.sampled_from(((), (), (), (0,), (1,), (2,)))):
        sizes[place] = 512
    return draw(st.sampled_from(TOKENS)), tuple(sizes), draw(st.sampled_from((torch.bfloat16, torch.float16)))


def _few_tokens(
    generator: torch.Generator, tokens: int, width: int, hidden: int, inner: int, columns: int, dtype: torch.dtype
) -> dict:
    """Arguments with rolled weights: it takes longer to make new ones than to call the op."""
    made = dict(_weights((width, hidden, inner, MOST_COLUMNS), dtype))
    made["qkv_proj"] = made["qkv_proj"][:columns]
    for name, places in zip(WEIGHTS, torch.randint(0, 1 << 16, (len(WEIGHTS),), generator=generator), strict=True):
        made[name] = made[name].roll(int(places))
    return made | activations(generator, tokens, width, hidden, dtype)


@functools.cache
def _weights(shape: tuple[int, ...], dtype: torch.dtype) -> dict:
    return arguments(torch.Generator().manual_seed(0), (0, *shape), dtype)
