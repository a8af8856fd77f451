"""rms_norm: root mean square normalisation of the last dimension, with a gradient."""

import torch
from pyxla_kernels._rms_norm.reference import backward, checked, normalised, setup_context

from pyxla import Check, custom_op


@custom_op
def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    Args:
        x: [..., hidden]; float32, bfloat16 or float16.
        weight: [hidden], x's dtype or float32; None leaves it out.
        eps: added to the mean of the squares; finite and not negative.

    Returns:
        As x. Computed in float32 or better and rounded once.

    Raises:
        ArgumentError: a dtype (CPU and CUDA tensors may be float64), rank, shape of weight or eps other than the above.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.
    """
    return normalised(x, weight, eps)


@rms_norm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6) -> torch.Tensor:
    return checked(Check("rms_norm"), x, weight, eps)


rms_norm.register_autograd(backward, setup_context=setup_context)


rms_norm.register_sharding("rows", operands={"x": -2}, results=[-2])
