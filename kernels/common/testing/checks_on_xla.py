"""Checks of gradients, and on XLA tensors, that several ops' tests make beside `pyxla.testing.CHECKS`."""

from collections.abc import Callable

import torch

from pyxla.testing.tolerance import compare
from pyxla.torch_ops.custom_op import CustomOp


def is_cuda() -> bool:
    """Whether XLA's device is a GPU, whose handlers cannot raise for what only the data shows."""
    import torch_xla.runtime

    return torch_xla.runtime.device_type() == "CUDA"


def check_gradients_numerically(function: Callable, inputs: tuple[torch.Tensor | None, ...]) -> None:
    """The first and second derivatives on CPU tensors of float64, against differences of the function.

    torch counts the devices at a process's first backward pass, and XLA's is none before it is started: without that, a
    later backward pass on XLA would fail.
    """
    import torch_xla

    torch_xla.device()
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def check_gradient_on_xla(
    op: CustomOp, device: torch.device, *inputs: torch.Tensor, compiled: bool, roundings: int = 16
) -> None:
    """The gradients of all inputs, lazily traced or compiled, against those of the reference in float64.

    Args:
        op: has one result.
        device: XLA's.
        inputs: its first arguments, float32; the others have their defaults.
        compiled: by torch.compile.
        roundings: as `pyxla.testing.Case.roundings`.
    """
    upstream = torch.randn(op.reference(*inputs).shape)

    def gradients(call, upstream, *inputs):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        (call(*leaves) * upstream).sum().backward()
        return [leaf.grad for leaf in leaves]

    want = gradients(op.reference, *(tensor.double() for tensor in (upstream, *inputs)))
    call = torch.compile(op, backend="openxla", fullgraph=True) if compiled else op
    got = gradients(lambda *tensors: call(*tensors), *(tensor.to(device) for tensor in (upstream, *inputs)))
    for g, w in zip(got, want, strict=True):
        compare(f"{op.name} gradient", g.cpu(), w, roundings=roundings)


def check_nan_stays_in_its_element(op: CustomOp, device: torch.device) -> None:
    """Of a gated activation. Not a case: opcheck takes a NaN for a difference.

    Args:
        op: all but its first argument have defaults.
        device: XLA's.
    """
    x = torch.tensor([[torch.nan, 2.0, 3.0, 1.0, torch.nan, 1.0]])
    got = op(x.to(device)).cpu()
    assert got.isnan().tolist() == [[True, True, False]]
    compare(op.name, got, op.reference(x.double()))
