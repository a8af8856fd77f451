"""Which namespaces of torch.ops a kernel package can have. devtool reads this file without torch."""

from __future__ import annotations

import re

#: The group of entry points by which kernel packages declare themselves.
GROUP = "pyxla.kernels"
#: The namespace of pyxla's own ops, and of ops that are declared outside of every kernel package.
NAMESPACE = "xla_gpu"
# Namespaces of torch, of its libraries and of XLA that do not begin with "torch".
_TAKEN = {"aten", "prim", "prims", "c10d", "c10d_functional", "quantized", "mkldnn", "onednn", "mkl", "inductor"}
_TAKEN |= {"rngprims", "debugprims", "profiler", "static_runtime", "xla", "pyxla", "cuda", "cpu"}


def namespace_problem(namespace: str) -> str | None:
    """What a namespace has to be, or None if it is valid."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", namespace) or "__" in namespace or len(namespace) > 64:
        return "lower-case letters, digits and _, a letter first, at most 64 characters"
    if namespace in _TAKEN or namespace.startswith("torch"):
        return "a namespace that torch does not have"
    return None
