"""The device code of rms_norm in Triton, and what the build compiles of it. _rms_norm/rms_norm.h has the formula."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_rows(x, weight, out, rows, hidden, eps, BLOCK: tl.constexpr, IN_REGISTERS: tl.constexpr):
    """A program takes a row."""
    begin = tl.program_id(0).to(tl.int64) * hidden
    if IN_REGISTERS:
        columns = tl.arange(0, BLOCK)
        y = load_row(x + begin, columns, hidden)
        scale = inverse_rms(tl.sum(y * y, axis=0), hidden, eps)
        store_row(out + begin, columns, hidden, y * scale, weight)
    else:
        # x is read twice, the second time from the cache.
        squares = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, hidden, BLOCK):
            y = load_row(x + begin, start + tl.arange(0, BLOCK), hidden)
            squares += y * y
        scale = inverse_rms(tl.sum(squares, axis=0), hidden, eps)
        for start in range(0, hidden, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            store_row(out + begin, columns, hidden, load_row(x + begin, columns, hidden) * scale, weight)


@triton.jit
def load_row(row, columns, hidden):
    # evict_last, as in the CUDA kernel: L2 gives up the written lines first.
    return tl.load(row + columns, mask=columns < hidden, other=0.0, eviction_policy="evict_last").to(tl.float32)


@triton.jit
def store_row(row, columns, hidden, values, weight):
    inside = columns < hidden
    # An absent weight is a null pointer.
    weighted = inside & (weight.to(tl.int64) != 0)
    factor = tl.load(weight + columns, mask=weighted, other=1.0).to(tl.float32)
    tl.store(row + columns, (values * factor).to(row.dtype.element_ty), mask=inside)


@triton.jit
def inverse_rms(sum_of_squares, hidden, eps):
    # Rounded to nearest: every element of the row inherits the error.
    mean = tl.div_rn(sum_of_squares, hidden.to(tl.float32))
    return tl.div_rn(1.0, tl.sqrt_rn(mean + eps))


ALIGNED = ("x", "weight", "out", "hidden")
# (element, weight)
TYPES = [("*fp32", "*fp32"), ("*bf16", "*bf16"), ("*bf16", "*fp32"), ("*fp16", "*fp16"), ("*fp16", "*fp32")]
# (BLOCK, num_warps, IN_REGISTERS, divisible_by_16, when): aligned rows by the smallest block that holds them, others by
# the element. `columns` and its last step stay below 2^31.
SHAPES = [
    *((block, num_warps, True, ALIGNED, "hidden <= BLOCK")
      for block, num_warps in ((256, 1), (1024, 4), (4096, 8), (8192, 16), (16384, 16))),
    (4096, 16, False, ALIGNED, "hidden <= 1073741824"),
    (4096, 16, False, (), "hidden <= 1073741824"),
]  # fmt: skip

# What is compiled. A call takes the first that fits it.
VARIANTS = [
    {
        "kernel": rms_norm_rows,
        "types": {"x": element, "weight": weight, "out": element, "rows": "i64", "hidden": "i32", "eps": "fp32"},
        "constants": {"BLOCK": block, "IN_REGISTERS": in_registers},
        "divisible_by_16": divisible,
        "when": when,
        "grid": ("rows",),
        "num_warps": num_warps,
        "num_stages": 1,
    }
    for element, weight in TYPES
    for block, num_warps, in_registers, divisible, when in SHAPES
]
