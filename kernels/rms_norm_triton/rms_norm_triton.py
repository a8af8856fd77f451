"""rms_norm_triton: rms_norm with its device code in Triton, compiled ahead of time."""

import torch
from pyxla_kernels._rms_norm.reference import backward, checked, normalised, setup_context

from pyxla import Check, custom_op


@custom_op
def rms_norm_triton(x: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6) -> torch.Tensor:
    """What rms_norm computes, with its arguments and errors.

    Args:
        x, weight, eps: as in rms_norm.

    Returns:
        As rms_norm.

    Raises:
        ArgumentError: as rms_norm.

    Source: as rms_norm.
    """
    return normalised(x, weight, eps)


@rms_norm_triton.register_fake
def _(x: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6) -> torch.Tensor:
    return checked(Check("rms_norm_triton"), x, weight, eps)


rms_norm_triton.register_autograd(backward, setup_context=setup_context)


rms_norm_triton.register_sharding("rows", operands={"x": -2}, results=[-2])
