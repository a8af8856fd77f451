"""torch 2.8's backend "openxla" wraps its compiler of backward passes once more at each torch.compile.

After some hundreds in one process, which only tests reach, compiling a backward pass ends in a RecursionError.
"""

from __future__ import annotations

import sys


def unwrap_backward_compiler() -> None:
    """Takes the wrappers off. Of a version that has none it takes nothing, so it needs no guard."""
    backend = sys.modules.get("torch._dynamo.backends.torchxla")
    if backend is not None:
        backend.openxla.kwargs.pop("bw_compiler", None)
