"""Checks and gradient shared by the gated activations."""

from collections.abc import Callable

import torch

from pyxla import Check, accumulation_dtype


def checked(check: Check, x: torch.Tensor) -> torch.Tensor:
    """The fake function: checks x for the op that `check` names and returns an empty result."""
    check.dtype("x", x, (torch.float32, torch.bfloat16, torch.float16), reference=(torch.float64,))
    check.that(x.dim() >= 1, "x", "rank 1 or more", f"shape {tuple(x.shape)}")
    check.that(x.shape[-1] % 2 == 0, "x", "an even last dimension", x.shape[-1], "x is the gate and its factor, joined")
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def gradient(x: torch.Tensor, grad: torch.Tensor, activation: Callable, activation_backward: Callable) -> torch.Tensor:
    """Gradient of x: grad * up * activation'(gate) for the gate, grad * activation(gate) for its factor."""
    wide = accumulation_dtype(x.dtype)
    gate, up = x.to(wide).chunk(2, dim=-1)
    grad = grad.to(wide)
    return torch.cat([activation_backward(grad * up, gate), grad * activation(gate)], dim=-1).to(x.dtype)
