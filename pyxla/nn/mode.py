"""The two ways to XLA: traced lazily, or compiled by torch.compile."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from pyxla.errors import ArgumentError, mismatch


def attention_mode(mode: str | None = None) -> str:
    """The requested mode: the argument, else `PYXLA_ATTENTION_MODE`, else "direct".

    Args:
        mode: "direct", lazily traced tensors that run at `torch_xla.sync()`; "compile",
            `torch.compile(backend="openxla")`; None: from the environment.

    Returns:
        "direct" or "compile".

    Raises:
        ArgumentError: there is no such mode.
    """
    argument = "PYXLA_ATTENTION_MODE" if mode is None else "mode"
    chosen = os.environ.get("PYXLA_ATTENTION_MODE") or "direct" if mode is None else mode
    if chosen not in ("direct", "compile"):
        raise ArgumentError(
            mismatch("attention_mode", argument, "direct or compile", chosen),
            "direct traces tensors lazily, compile uses torch.compile(backend='openxla')",
        )
    return chosen


def in_mode(function: Callable, mode: str | None = None) -> Callable:
    """The function for a mode: itself, or compiled for XLA as one graph, once per set of shapes.

    Args:
        function: takes and returns XLA tensors; it may update tensors in place in both modes.
        mode: as in `attention_mode`.

    Returns:
        In mode "direct" the function itself: the caller ends a step with `torch_xla.sync()`. In mode "compile" the
        compiled function, in which torch raises an error for a graph break.

    Raises:
        ArgumentError: there is no such mode.
    """
    if attention_mode(mode) == "direct":
        return function
    return torch.compile(function, backend="openxla", fullgraph=True, dynamic=False)
