"""scaled: replace: what it is, in one line."""

import torch

from pyxla import Check, accumulation_dtype, custom_op

check = Check("scaled")


@custom_op
def scaled(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """replace: what it computes, in one line.

    Args:
        x: any shape; float32, bfloat16 or float16.
        scale: replace: its meaning and unit.

    Returns:
        As x, one tensor.

    Raises:
        ArgumentError: a dtype other than those above (CPU and CUDA tensors may be float64).

    Source: replace: paper, file or formula.
    """
    wide = accumulation_dtype(x.dtype)
    # replace: the formula, as scaled.h states it; the kernel is compared with this function
    factor = scale
    blend = x.to(wide)
    return (factor * blend).to(x.dtype)


@scaled.register_fake
def _(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    # replace: the checks, which run on every device before the kernel, and shape and dtype of each result
    check.dtype("x", x, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    return torch.empty_like(x, memory_format=torch.contiguous_format)
