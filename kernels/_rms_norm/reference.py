"""Formula, checks and gradient of rms_norm, shared by the ops that compute it."""

import torch

from pyxla import Check, accumulation_dtype


def normalised(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in the accumulation dtype, rounded once."""
    wide = accumulation_dtype(x.dtype)
    out = x.to(wide) * inverse_rms(x, eps)
    if weight is not None:
        out = out * weight.to(wide)
    return out.to(x.dtype)


def checked(check: Check, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """The fake function: checks the arguments for the op that `check` names and returns an empty result."""
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
