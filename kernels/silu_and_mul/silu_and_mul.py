"""silu_and_mul: the gated activation of SwiGLU, with a gradient."""

import torch
from pyxla_kernels._gated.reference import checked, gradient

from pyxla import Check, accumulation_dtype, custom_op


@custom_op
def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(x[..., :d]) * x[..., d:], where silu(v) = v / (1 + exp(-v)).

    Args:
        x: [..., 2 * d], the gate and then what it multiplies; float32, bfloat16 or float16.

    Returns:
        [..., d], x's dtype. Computed in float32 or better and rounded once.

    Raises:
        ArgumentError: another dtype (CPU and CUDA tensors may be float64), rank 0, an odd last dimension.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020, arXiv:2002.05202.
    """
    gate, up = x.to(accumulation_dtype(x.dtype)).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


@silu_and_mul.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return checked(Check("silu_and_mul"), x)


def setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
    return gradient(*ctx.saved_tensors, grad, torch.nn.functional.silu, silu_backward)


def silu_backward(grad: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """grad * silu'(gate), by ops that have a gradient themselves, because aten.silu_backward has none."""
    sigmoid = torch.sigmoid(gate)
    return grad * sigmoid * (1 + gate * (1 - sigmoid))


silu_and_mul.register_autograd(backward, setup_context=setup_context)


silu_and_mul.register_sharding("rows", operands={"x": -2}, results=[-2])
