"""fused_add_rms_norm: adds to the residual stream in place and returns its root mean square normalisation."""

import torch

from pyxla import Check, accumulation_dtype, custom_op

check = Check("fused_add_rms_norm")


@custom_op(mutates=["residual"])
def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6
) -> torch.Tensor:
    """residual += x; then residual / sqrt(mean(residual^2) + eps) * weight over the last dimension.

    The sum is normalised as it is before it is rounded to residual's dtype. On XLA there is no gradient, as the op
    works in place: train with `residual + x` and rms_norm.

    Args:
        x: [..., hidden]; float32, bfloat16 or float16.
        residual: as x; updated in place.
        weight: [hidden], x's dtype or float32; None leaves it out.
        eps: added to the mean of the squares; finite and not negative.

    Returns:
        As x. Formed in float32 or better and rounded once.

    Raises:
        ArgumentError: another dtype (CPU and CUDA tensors may be float64) or rank, residual's or weight's shape, eps.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467; the fused form is
    vLLM's, which puts the result in x's place.
    """
    wide = accumulation_dtype(x.dtype)
    total = x.to(wide) + residual.to(wide)
    residual.copy_(total)
    out = total * torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + eps)
    if weight is not None:
        out = out * weight.to(wide)
    return out.to(x.dtype)


@fused_add_rms_norm.register_fake
def _(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6) -> torch.Tensor:
    check.dtype("x", x, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.that(x.dim() >= 1, "x", "rank 1 or more", f"shape {tuple(x.shape)}")
    check.dtype("residual", residual, (x.dtype,))
    check.shape("residual", residual, x.shape, hint="fused_add_rms_norm does not broadcast")
    if weight is not None:
        dtypes = (torch.float32,) if x.dtype == torch.float32 else (x.dtype, torch.float32)
        check.dtype("weight", weight, dtypes)
        check.shape("weight", weight, x.shape[-1:], hint="weight must match the last dimension of x")
    check.finite("eps", eps)
    check.that(eps >= 0, "eps", "a number that is not negative", eps)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


fused_add_rms_norm.register_sharding("rows", operands={"x": -2, "residual": -2}, results=[-2])
