"""Ops of torch whose lowering to XLA is a StableHLO module, for what torch_xla has no op for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from pyxla.lowering.stablehlo import as_computation

_library = torch.library.Library("pyxla_vllm", "FRAGMENT")


def op(schema: str, fake: Callable[..., torch.Tensor], module: Callable[..., str]) -> Callable[..., torch.Tensor]:
    """Defines `torch.ops.pyxla_vllm.<name>`, for XLA tensors alone.

    Args:
        schema: name, arguments and one result, as torch.library takes them; tensors come first.
        fake: an empty result for the arguments.
        module: the text of the module, from the arguments' values, of tensors the shapes.
    """
    name = schema.partition("(")[0]

    def lowered(*arguments: torch.Tensor | int) -> torch.Tensor:
        from torch_xla import _XLAC

        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        shapes = tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in arguments)
        return _XLAC._xla_user_computation(f"pyxla_vllm::{name}", tensors, computation(shapes))[0]

    @cache
    def computation(shapes: tuple) -> object:
        return as_computation(f"pyxla_vllm_{name}", module(*shapes))

    _library.define(schema)
    _library.impl(name, lowered, "XLA")
    torch.library.register_fake(f"pyxla_vllm::{name}", fake, lib=_library)
    return getattr(torch.ops.pyxla_vllm, name).default
