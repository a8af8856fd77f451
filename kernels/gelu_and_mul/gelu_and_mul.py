"""gelu_and_mul: the gated activation of GEGLU, with a gradient."""

import math
from functools import partial

import torch
from pyxla_kernels._gated.reference import checked, gradient

from pyxla import Check, accumulation_dtype, custom_op

check = Check("gelu_and_mul")


@custom_op
def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """gelu(x[..., :d]) * x[..., d:], where gelu(v) = v * P(v), P the standard normal distribution function.

    Args:
        x: [..., 2 * d], the gate and then what it multiplies; float32, bfloat16 or float16.
        approximate: "none", or "tanh": gelu(v) = v / 2 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * v^3))).

    Returns:
        [..., d], x's dtype. Computed in float32 or better and rounded once.

    Raises:
        ArgumentError: another dtype (CPU and CUDA tensors may be float64), rank 0, an odd last dimension,
            another approximation.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020, arXiv:2002.05202; Hendrycks and Gimpel, "Gaussian
    Error Linear Units", 2016, arXiv:1606.08415.
    """
    gate, up = x.to(accumulation_dtype(x.dtype)).chunk(2, dim=-1)
    # Not torch's gelu: its 1 + erf and 1 + tanh cancel, even in float64, where gelu is tiny.
    if approximate == "tanh":
        share = torch.sigmoid(math.sqrt(8 / math.pi) * (gate + 0.044715 * gate**3))
    else:
        share = torch.special.erfc(-gate / math.sqrt(2)) / 2
    return (gate * share * up).to(x.dtype)


@gelu_and_mul.register_fake
def _(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    out = checked(check, x)
    check.that(approximate in ("none", "tanh"), "approximate", "none or tanh", approximate)
    return out


def setup_context(ctx, inputs, output) -> None:
    x, ctx.approximate = inputs
    ctx.save_for_backward(x)


def backward(ctx, grad: torch.Tensor):
    (x,), approximate = ctx.saved_tensors, ctx.approximate
    gelu = partial(torch.nn.functional.gelu, approximate=approximate)
    return gradient(x, grad, gelu, partial(torch.ops.aten.gelu_backward, approximate=approximate)), None


gelu_and_mul.register_autograd(backward, setup_context=setup_context)


gelu_and_mul.register_sharding("rows", operands={"x": -2}, results=[-2])
