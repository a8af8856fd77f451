"""silu_and_mul: the gated activation of SwiGLU, with a gradient."""

import torch

from pyxla import Check, accumulation_dtype, custom_op

check = Check("silu_and_mul")


@custom_op
def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(x[..., :d]) * x[..., d:], where silu(v) = v / (1 + exp(-v)).

    Args:
        x: [..., 2 * d], the gate and then what it multiplies; float32, bfloat16 or float16.

    Returns:
        [..., d], x's dtype. Formed in float32 or better and rounded once.

    Raises:
        ArgumentError: another dtype (CPU and CUDA tensors may be float64), rank 0, an odd last dimension.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020, arXiv:2002.05202.
    """
    gate, up = x.to(accumulation_dtype(x.dtype)).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


@silu_and_mul.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    check.dtype("x", x, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.that(x.dim() >= 1, "x", "rank 1 or more", f"shape {tuple(x.shape)}")
    check.that(x.shape[-1] % 2 == 0, "x", "an even last dimension", x.shape[-1], "x is the gate and its factor, joined")
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
    """Gradient of x: of the gate, grad * up * silu'(gate); of its factor, grad * silu(gate)."""
    (x,) = ctx.saved_tensors
    wide = accumulation_dtype(x.dtype)
    gate, up = x.to(wide).chunk(2, dim=-1)
    grad = grad.to(wide)
    of_gate = torch.ops.aten.silu_backward(grad * up, gate)
    return torch.cat([of_gate, grad * torch.nn.functional.silu(gate)], dim=-1).to(x.dtype)


silu_and_mul.register_autograd(backward, setup_context=setup_context)


silu_and_mul.register_sharding("rows", operands={"x": -2}, results=[-2])
