"""The key under which pyxla keeps the XLA computation of a call: everything on which the custom call depends.

torch_xla's own key of a graph contains the whole computation: docs/concept/cache-key.md.
"""

from __future__ import annotations

from typing import Any

import torch


def cache_key(arguments: tuple) -> tuple:
    """Equal for calls with the same shapes, dtypes and attributes.

    Args:
        arguments: all arguments of a call, in order.
    """
    return tuple(map(_part, arguments))


def _part(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.device.type
    if isinstance(value, (list, tuple)):
        return tuple(map(_part, value))
    # 0.0 == -0.0, but they are different attributes; and a NaN equals nothing, so each call would add a key.
    return repr(value) if isinstance(value, float) else value
