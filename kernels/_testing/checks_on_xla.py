"""Checks that the tests of several ops make in addition to `pyxla.testing.CHECKS`: gradients, and NaN on XLA."""

from collections.abc import Callable

import torch

from pyxla.testing.tolerance import compare
from pyxla.torch_ops.custom_op import CustomOp


def is_cuda() -> bool:
    """Whether XLA's device is a GPU, whose handlers cannot raise for wrong data."""
    import torch_xla.runtime

    return torch_xla.runtime.device_type() == "CUDA"


def check_gradients_numerically(function: Callable, inputs: tuple[torch.Tensor | None, ...]) -> None:
    """Compares the first and second derivatives on float64 CPU tensors with finite differences of the function.

    torch counts the devices at a process's first backward pass. XLA is started before it, because otherwise torch would
    count no XLA device and a later backward pass on XLA would fail.
    """
    import torch_xla

    torch_xla.device()
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def check_gradient_on_xla(
    op: CustomOp, device: torch.device, *inputs: torch.Tensor, compiled: bool, roundings: int = 16
) -> None:
    """Compares the gradients of all inputs, lazily traced or compiled, with those of the reference in float64.

    Args:
        op: an op with one result.
        device: XLA's.
        inputs: the op's first arguments, float32; the others have their defaults.
        compiled: whether to use torch.compile.
        roundings: as in `pyxla.testing.Case`.
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
    """For a gated activation. Not a case, because opcheck counts a NaN as a difference.

    Args:
        op: an op whose arguments after the first have defaults.
        device: XLA's.
    """
    x = torch.tensor([[torch.nan, 2.0, 3.0, 1.0, torch.nan, 1.0]])
    got = op(x.to(device)).cpu()
    assert got.isnan().tolist() == [[True, True, False]]
    compare(op.name, got, op.reference(x.double()))
