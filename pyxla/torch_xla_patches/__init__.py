"""Every place where pyxla replaces or uses a private part of torch_xla, one module each.

    symbols              torch_xla 2.9 hides the functions of XLA that pyxla calls
    debug_flags          XLA reads its flags once, before its first computation
    dlpack               torch_xla 2.9 takes memory of the CPU alone; a capsule is never freed
    mesh                 torch.compile on a mesh confuses inputs, and copies the arguments that it updated
    fallback_counters    torch.compile clears the counters of operations that ran on the CPU
    traced_graph         a graph can be made of what torch.compile has traced alone
    compiled_graphs      a compiled function keeps its graphs in a closure, without a hook before a run
    forked_child         in a forked child a computation never ends
    backward_compiler    torch's backend wraps its compiler once more at each use

This file says with which versions pyxla was tried; any other is refused, as a private part may have another meaning
there. `tests/torch_xla_patches` shows the behaviour without the patch: if such a test fails, torch_xla no longer needs
it. The faster import of torch_xla must be installed before pyxla is imported, so it is a package of its own:
pyxla/torch_backend.
"""

from __future__ import annotations

import importlib.metadata

from pyxla.errors import PyxlaError, mismatch

# torch_xla -> the versions of torch that it was tried with; the first pair is the one to install.
PAIRS = {"2.9.0": ("2.9.1", "2.9.0"), "2.8.1": ("2.8.0",)}


def installed_versions() -> tuple[str, str]:
    """The versions of torch and torch_xla, without a build's suffix such as +cpu; "none" for what is not installed."""
    return _version("torch"), _version("torch_xla")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "none"


def release(where: str = "pyxla") -> str:
    """The release of the installed pair: "2.8" or "2.9".

    Args:
        where: what needs it, for the message.

    Raises:
        PyxlaError: pyxla was not tried with these versions.
    """
    torch, torch_xla = installed_versions()
    if torch not in PAIRS.get(torch_xla, ()):
        names = [f"torch {torchs[0]} and torch_xla {version}" for version, torchs in PAIRS.items()]
        expected, got = " or ".join(names), f"torch {torch} and torch_xla {torch_xla}"
        raise PyxlaError(mismatch(where, "torch_xla", f"{expected}, the pairs that were tried", got), _install(torch))
    return torch_xla.rpartition(".")[0]


def _install(torch: str) -> str:
    """The command that makes a pair: with the installed torch, if there is one."""
    fitting = [version for version, torchs in PAIRS.items() if torch in torchs]
    if fitting:
        return f"pip install torch_xla=={fitting[0]}"
    version, (newest, *_) = next(iter(PAIRS.items()))
    return f"pip install torch=={newest} torch_xla=={version}"
