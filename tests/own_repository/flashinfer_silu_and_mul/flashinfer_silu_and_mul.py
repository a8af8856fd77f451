"""flashinfer_silu_and_mul: silu of a row's first half, times its second half, by FlashInfer's kernel."""

import torch

from pyxla import Check, accumulation_dtype, custom_op

check = Check("flashinfer_silu_and_mul")


@custom_op
def flashinfer_silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(x[:, :columns]) * x[:, columns:], silu(v) = v / (1 + exp(-v)).

    Args:
        x: [rows, 2 * columns]; float32, bfloat16 or float16; 2 * columns is a multiple of 16.

    Returns:
        [rows, columns], x's dtype. Computed in float32 and rounded once.

    Raises:
        ArgumentError: a dtype or shape other than those above (CPU and CUDA tensors may be float64).

    Source: FlashInfer 0.5.3, activation.cuh.
    """
    gate, up = x.to(accumulation_dtype(x.dtype)).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


@flashinfer_silu_and_mul.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    check.dtype("x", x, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.rank("x", x, 2)
    check.that(x.shape[1] % 16 == 0, "x", "columns that are a multiple of 16", x.shape[1])
    return x.new_empty(x.shape[0], x.shape[1] // 2)
