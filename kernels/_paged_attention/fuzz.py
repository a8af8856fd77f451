"""What `devtool fuzz` draws for the ops that compute paged attention: any batch, with any options."""

from collections.abc import Callable

from pyxla_kernels._paged_attention.cases import BF16, F8, F16, F32, batch

from pyxla.testing import Case

#: The logits' rounding grows with the first two: a large factor shows nothing else. Scales of a cache are finite: an
#: infinite one makes the sum of products NaN, but not the kernels' result, which scale the sum.
FUZZ_KEEPS = ("scale", "soft_cap", "kv_scales")
# Lengths at which blocks, KV tiles and ranges of keys begin and end.
LENGTHS = (1, 2, 3, 8, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129, 200, 257)


def fuzz(draw: Callable, *, has_lse: bool = False) -> Case:
    """Any ragged batch.

    Args:
        draw: hypothesis', which draws from a strategy.
        has_lse: for the op that also returns the sums.
    """
    from hypothesis import strategies as st

    lengths = []
    for _ in range(draw(st.integers(0, 4))):
        context = draw(st.sampled_from(LENGTHS))
        # Mostly a decode; now and then a prefill, a part of one, or no new token.
        new = draw(st.sampled_from((1, 1, 1, min(2, context), context, max(0, context // 2), 0)))
        lengths.append((new, context))
    group, kv_heads = draw(st.sampled_from((1, 2, 3, 4, 5, 7, 8, 20))), draw(st.sampled_from((1, 2, 3)))
    options = {
        "heads": (group * kv_heads, kv_heads),
        "d": draw(st.sampled_from((8, 16, 24, 64, 72, 80, 128, 256))),
        "block_size": draw(st.sampled_from((1, 2, 8, 16, 32, 128, 256, 5))),
        "merged": draw(st.booleans()),
        "padding": (draw(st.integers(0, 3)), draw(st.integers(0, 2))),
    }
    optional = {
        "sliding_window": (1, 2, 7, 20, 50, 2**40),
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
    return batch("drawn", "any batch", lengths, dtype, roundings=64, **options).case(has_lse)


def fuzz_lse(draw: Callable) -> Case:
    """As `fuzz`, for the op that also returns the sums."""
    return fuzz(draw, has_lse=True)
