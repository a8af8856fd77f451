"""Every place where pyxla replaces or uses a private part of torch_xla, one module each.

    mesh                 torch.compile on a mesh confuses inputs, and copies the arguments that it updated
    fallback_counters    torch.compile clears the counters of operations that ran on the CPU
    debug_flags          XLA reads its flags once, before its first computation
    compiled_graphs      a compiled function keeps its graphs in a closure
    backward_compiler    torch's backend wraps its compiler once more at each use

Each module says which behaviour of torch_xla makes it necessary. It was written for one version and refuses any other,
where the private part may have another meaning; a module without that check says why. `tests/torch_xla_patches` shows
the behaviour without the patch: if such a test fails, torch_xla no longer needs it. The faster import of torch_xla must
be installed before pyxla is imported, so it is a package of its own: pyxla/torch_backend.
"""

from __future__ import annotations

import importlib.metadata

from pyxla.errors import PyxlaError, mismatch

VERSIONS = ("2.8.0", "2.8.1")  # torch, torch_xla


def installed_versions() -> tuple[str, str]:
    """The versions of torch and torch_xla, without a build's suffix such as +cpu."""
    torch, torch_xla = (importlib.metadata.version(name).partition("+")[0] for name in ("torch", "torch_xla"))
    return torch, torch_xla


def require_known_versions(patch: str) -> None:
    """Raises PyxlaError for a torch or torch_xla that the patch was not written for.

    Args:
        patch: name of the patch, which is the name of its module.
    """
    got = installed_versions()
    if got != VERSIONS:
        expected, found = (f"torch {torch} and torch_xla {torch_xla}" for torch, torch_xla in (VERSIONS, got))
        raise PyxlaError(
            mismatch("torch_xla", patch, f"{expected}, which this patch is for", found),
            f"pip install torch=={VERSIONS[0]} torch_xla=={VERSIONS[1]}",
        )
