"""The Python side of mistakes_ffi.cc, and ops whose Python has a mistake; all double a float32 tensor."""

import torch

from pyxla import Check, CustomOp, custom_op


def _declare(function) -> CustomOp:
    op = custom_op(function)

    @op.register_fake
    def _(x, *others):
        Check(op.name).dtype("x", x, (torch.float32,), reference=(torch.float64,))
        return torch.empty_like(x)

    return op


@_declare
def mistake_writes_operand(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@_declare
def mistake_unstable(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@_declare
def mistake_unchecked(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@_declare
def mistake_checked(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@_declare
def mistake_throws(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@_declare
def mistake_throws_in_loop(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@_declare
def mistake_throws_number(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@_declare
def mistake_launch(x: torch.Tensor, renormalize: bool) -> torch.Tensor:
    return 2 * x


@_declare
def mistake_attribute(x: torch.Tensor, renormalize: bool) -> torch.Tensor:
    return 2 * x


@_declare
def mistake_binding(x: torch.Tensor, renormalize: bool) -> torch.Tensor:
    return 2 * x


@_declare
def mistake_silent(x: torch.Tensor, renormalize: bool) -> torch.Tensor:
    return 2 * x


@_declare
def mistake_order(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return 2 * x


@custom_op
def mistake_fake_shape(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return 2 * x, x.argmax(-1)


@mistake_fake_shape.register_fake
def _(x):
    return x.new_empty(x.shape[::-1]), x.new_empty(x.shape[:-1], dtype=torch.int64)


@custom_op
def mistake_fake_dtype(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return 2 * x, x.argmax(-1)


@mistake_fake_dtype.register_fake
def _(x):
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.int32)


@custom_op
def mistake_fake_count(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return 2 * x, x.argmax(-1)


@mistake_fake_count.register_fake
def _(x):
    return torch.empty_like(x)


@custom_op
def mistake_reference_count(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return 2 * x


@mistake_reference_count.register_fake
def _(x):
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.int64)
