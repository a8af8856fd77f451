"""What `devtool fuzz` draws for the ops that compute paged attention: any batch, with any options."""

from collections.abc import Callable, Sequence

from pyxla_kernels._paged_attention.cases import BF16, F8, F16, F32, batch

from pyxla.testing import Case

#: The logits' rounding grows with the first two: a large factor shows nothing else. Scales of a cache are finite: an
#: infinite one makes the sum of products NaN, but not the kernels' result, which scale the sum.
FUZZ_KEEPS = ("scale", "soft_cap", "kv_scales")
# Lengths at which blocks, KV tiles and ranges of keys begin and end.
LENGTHS = (1, 2, 3, 8, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129, 200, 257)
# Contexts that CUDA divides into splits: decode's kernel from 5120 keys on, prefill's from 2048. One batch in eight has
# them, with the new tokens at which another kernel begins.
LONG_LENGTHS, NEW = (2047, 2048, 3100, 5119, 5120, 7000), (1, 1, 2, 4, 5, 8, 20)
BLOCK_SIZES = (1, 2, 8, 16, 32, 128, 256, 5)
# How often a batch has its sequences: mostly once. With 45 times CUDA has too many work tiles to give one several CTAs.
COPIES = (1,) * 7 + (45,)
# Elements of the keys, and twice those of the query. The tests have larger batches; here more calls find more.
MOST = 1 << 15


def fuzz(draw: Callable, *, has_lse: bool = False) -> Case:
    """Any ragged batch.

    Args:
        draw: hypothesis', which draws from a strategy.
        has_lse: for the op that also returns the sums.
    """
    from hypothesis import strategies as st

    is_long = draw(st.sampled_from((False,) * 7 + (True,)))
    group, kv_heads = draw(st.sampled_from((1, 2, 3, 4, 5, 7, 8, 20))), draw(st.sampled_from((1, 2, 3)))
    d = draw(st.sampled_from((64, 72, 128) if is_long else (8, 16, 24, 64, 72, 80, 128, 256)))
    lengths = _long_lengths(draw) if is_long else _lengths(draw, group * kv_heads * d, kv_heads * d)
    options = {
        "heads": (group * kv_heads, kv_heads),
        "d": d,
        "block_size": draw(st.sampled_from(_up_to(MOST // (4 * kv_heads * d), BLOCK_SIZES))),
        "merged": draw(st.booleans()),
        "padding": (draw(st.integers(0, 3)), draw(st.integers(0, 2))),
    }
    optional = {
        "sliding_window": (1, 2, 7, 20, 50, 3000, 2**40),
        "soft_cap": (0.5, 5.0, 50.0, 1e3),
        "alibi": (True,),
        "sinks": (True,),
        "cache_dtype": (F8,),
        "scale": (0.0, -0.2, 1e-6),
    }
    for name in draw(st.lists(st.sampled_from(sorted(optional)), max_size=3, unique=True)):
        options[name] = draw(st.sampled_from(optional[name]))
    if "cache_dtype" in options:
        options["scaled"] = draw(st.booleans())
    dtype = draw(st.sampled_from((F32, BF16, F16)))
    # Among thousands of batches some sums cancel more than in any of the tests.
    copies = 1 if is_long else draw(st.sampled_from(COPIES))
    return batch("drawn", "any batch", lengths, dtype, roundings=64, copies=copies, **options).case(has_lse)


def _lengths(draw: Callable, query: int, keys: int) -> list[tuple[int, int]]:
    """New tokens and context of each sequence. `query`: a token's elements in the query, `keys`: in the keys."""
    from hypothesis import strategies as st

    most_rows, most_positions = MOST // (2 * query), MOST // keys
    lengths = []
    for _ in range(draw(st.integers(0, 4))):
        context = draw(st.sampled_from(_up_to(most_positions, LENGTHS)))
        # Mostly a decode; now and then a prefill, a part of one, or no new token.
        new = min(draw(st.sampled_from((1, 1, 1, min(2, context), context, context // 2, 0))), max(1, most_rows))
        lengths.append((new, context))
        most_rows, most_positions = most_rows - new, most_positions - context
    return lengths


def _long_lengths(draw: Callable) -> list[tuple[int, int]]:
    from hypothesis import strategies as st

    new, context = st.sampled_from(NEW), st.sampled_from(LONG_LENGTHS)
    return [(draw(new), draw(context)) for _ in range(draw(st.integers(1, 2)))]


def _up_to(most: int, sizes: Sequence[int]) -> Sequence[int]:
    return [size for size in sizes if size <= most] or sizes[:1]


def fuzz_lse(draw: Callable) -> Case:
    """As `fuzz`, for the op that also returns the sums."""
    return fuzz(draw, has_lse=True)
