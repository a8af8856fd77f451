"""fused_add_rms_norm: adds to the residual stream in place and returns its root mean square normalisation."""

import torch
from pyxla_kernels._rms_norm.reference import checked, normalised

from pyxla import Check, accumulation_dtype, custom_op

check = Check("fused_add_rms_norm")


@custom_op(mutates=["residual"])
def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6
) -> torch.Tensor:
    """residual += x; then residual / sqrt(mean(residual^2) + eps) * weight over the last dimension.

    The sum is normalised before it is rounded to residual's dtype. On XLA there is no gradient, as the op
    works in place: train with `residual + x` and rms_norm.

    Args:
        x: [..., hidden]; float32, bfloat16 or float16.
        residual: as x; updated in place.
        weight: [hidden], x's dtype or float32; None leaves it out.
        eps: added to the mean of the squares; finite and not negative.

    Returns:
        As x. Computed in float32 or better and rounded once.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank, shape or eps other than the above.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467; the fused form is
    vLLM's, which writes the result to x.
    """
    wide = accumulation_dtype(x.dtype)
    total = x.to(wide) + residual.to(wide)
    residual.copy_(total)
    return normalised(total, weight, eps).to(x.dtype)


@fused_add_rms_norm.register_fake
def _(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6) -> torch.Tensor:
    out = checked(check, x, weight, eps)
    check.dtype("residual", residual, (x.dtype,))
    check.shape("residual", residual, x.shape, hint="fused_add_rms_norm does not broadcast")
    return out


fused_add_rms_norm.register_sharding("rows", operands={"x": -2, "residual": -2}, results=[-2])
