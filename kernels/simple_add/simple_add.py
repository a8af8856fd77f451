"""simple_add: the smallest op that has all parts; the example to start from."""

import torch

from pyxla import Check, accumulation_dtype, custom_op

check = Check("simple_add")


@custom_op
def simple_add(a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """a + alpha * b, without broadcasting.

    Args:
        a: any shape; float32, bfloat16 or float16.
        b: as a.
        alpha: factor of b.

    Returns:
        As a. The sum is computed in float32 and rounded once.

    Raises:
        ArgumentError: another dtype (CPU and CUDA tensors may be float64); b's shape or dtype is not a's.

    Source: torch.add, without its broadcasting and type promotion; in bfloat16 and float16 torch.add on the
    CPU rounds alpha * b before it adds.
    """
    wide = accumulation_dtype(a.dtype)
    return torch.add(a.to(wide), b.to(wide), alpha=alpha).to(a.dtype)


@simple_add.register_fake
def _(a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    check.dtype("a", a, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.dtype("b", b, (a.dtype,))
    check.shape("b", b, a.shape, hint="simple_add does not broadcast: b = b.expand_as(a)")
    return torch.empty_like(a, memory_format=torch.contiguous_format)


simple_add.register_sharding("rows", operands={"a": 0, "b": 0}, results=[0])
