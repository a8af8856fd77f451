"""Write a GPU kernel and use it from PyTorch through XLA.

`import pyxla` defines every op that it finds as `torch.ops.xla_gpu.<op>`, and so does `import torch_xla`, which imports
pyxla; handlers are registered on first use.
"""

import importlib
import os
import sys
from typing import Any

# Otherwise XLA's CPU client runs larger computations in the background, and a handler's error there kills the process
# when the result is read (pyxla/lowering/uploads.py). torch_xla reads this when it starts its client.
os.environ.setdefault("PJRT_CPU_ASYNC_CLIENT", "0")

from pyxla.errors import ArgumentError, ArtifactError, DefinitionError, LibraryError, PyxlaError, VersionError
from pyxla.op.arguments import Check
from pyxla.op.numerics import accumulation_dtype
from pyxla.paths import cmake_dir, include_dir
from pyxla.spmd.shard import shard
from pyxla.sync import drain_errors, sync
from pyxla.torch_ops.custom_op import CustomOp, custom_op, find_op
from pyxla.torch_ops.discovery import load_all as _load_all
from pyxla.torch_ops.implementation import Implementation, chosen_implementation, implementation, use_implementation
from pyxla.torch_xla_patches import release as _release

__all__ = [
    "ArgumentError",
    "Artifact",
    "ArtifactError",
    "Check",
    "CustomOp",
    "DefinitionError",
    "Implementation",
    "Inspection",
    "LibraryError",
    "PyxlaError",
    "VersionError",
    "accumulation_dtype",
    "assert_custom_calls",
    "assert_no_copies",
    "assert_no_fallback",
    "assert_no_recompilation",
    "chosen_implementation",
    "cmake_dir",
    "compiled_for",
    "custom_op",
    "drain_errors",
    "export",
    "find_op",
    "implementation",
    "include_dir",
    "inspect",
    "inspecting",
    "load_artifact",
    "shard",
    "sync",
    "use_implementation",
]

# Imported at their first use: `import pyxla` takes 30 to 40 ms less without them.
_LATER = {
    "artifact.load": ("Artifact", "load_artifact"),
    "artifact.save": ("export",),
    "inspection.ahead_of_time": ("compiled_for",),
    "inspection.assertions": (
        "assert_custom_calls",
        "assert_no_copies",
        "assert_no_fallback",
        "assert_no_recompilation",
    ),
    "inspection.inspection": ("Inspection", "inspect", "inspecting"),
}
_PACKAGES = ("artifact", "hlo", "inspection")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"pyxla.{name}")
    for module, names in _LATER.items():
        if name in names:
            return globals().setdefault(name, getattr(importlib.import_module(f"pyxla.{module}"), name))
    return object.__getattribute__(sys.modules[__name__], name)  # Python's own error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_release()
_load_all()
