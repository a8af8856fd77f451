"""rms_norm: root mean square normalisation of the last dimension, with a gradient."""

import torch

from pyxla import Check, accumulation_dtype, custom_op

check = Check("rms_norm")


@custom_op
def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    Args:
        x: [..., hidden]; float32, bfloat16 or float16.
        weight: [hidden], x's dtype or float32; None leaves it out.
        eps: added to the mean of the squares; finite and not negative.

    Returns:
        As x. Formed in float32 or better and rounded once.

    Raises:
        ArgumentError: another dtype (CPU and CUDA tensors may be float64) or rank, weight's shape, eps.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.
    """
    wide = accumulation_dtype(x.dtype)
    out = x.to(wide) * inverse_rms(x, eps)
    if weight is not None:
        out = out * weight.to(wide)
    return out.to(x.dtype)


@rms_norm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6) -> torch.Tensor:
    check.dtype("x", x, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.that(x.dim() >= 1, "x", "rank 1 or more", f"shape {tuple(x.shape)}")
    if weight is not None:
        dtypes = (torch.float32,) if x.dtype == torch.float32 else (x.dtype, torch.float32)
        check.dtype("weight", weight, dtypes)
        check.shape("weight", weight, x.shape[-1:], hint="weight must match the last dimension of x")
    check.finite("eps", eps)
    check.that(eps >= 0, "eps", "a number that is not negative", eps)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last dimension, which is kept; in the accumulation dtype."""
    return torch.rsqrt(x.to(accumulation_dtype(x.dtype)).square().mean(dim=-1, keepdim=True) + eps)


def setup_context(ctx, inputs, output) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def backward(ctx, grad: torch.Tensor):
    """Gradients of x and weight. With r = inverse_rms(x) and n = x * r:

    dx = r * (g * weight - n * mean(g * weight * n)), dweight = sum over the rows of g * n.
    """
    x, weight = ctx.saved_tensors
    wide = accumulation_dtype(x.dtype)
    scale = inverse_rms(x, ctx.eps)
    normed = x.to(wide) * scale
    grad = grad.to(wide)
    weighted = grad if weight is None else grad * weight.to(wide)
    grad_x = grad_weight = None
    if ctx.needs_input_grad[0]:
        grad_x = (scale * (weighted - normed * (weighted * normed).mean(dim=-1, keepdim=True))).to(x.dtype)
    if weight is not None and ctx.needs_input_grad[1]:
        grad_weight = (grad * normed).reshape(-1, x.shape[-1]).sum(dim=0).to(weight.dtype)
    return grad_x, grad_weight, None


rms_norm.register_autograd(backward, setup_context=setup_context)
