"""torch 2.8's backend "openxla" wraps its compiler of backward passes once more at each torch.compile.

After several hundred in one process, which only tests reach, compiling a backward pass ends in a RecursionError.
"""

from __future__ import annotations

import sys


def unwrap_backward_compiler() -> None:
    """Removes the wrappers. In a version without them it does nothing, so it does not check the version."""
    backend = sys.modules.get("torch._dynamo.backends.torchxla")
    if backend is not None:
        backend.openxla.kwargs.pop("bw_compiler", None)
