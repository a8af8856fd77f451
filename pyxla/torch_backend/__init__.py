"""What `import torch` calls, through the entry point of group `torch.backends`: it lets torch_xla load, and soon.

Where torch sees a GPU, `import torch_xla` 2.8.1 wants a function that torch 2.8.0 has in another form, and fails. The
library beside this file has the old form and calls the new one. Where torch sees none, torch_xla brings its own.

What makes `import torch_xla` slow without being of use to it:

- For one class it imports torch's inductor. Where triton is installed, that starts a process with workers at once, and
  waits for it at the program's end. TORCH_WARM_POOL=0 has inductor start them when there is something to compile.
- Python looks through all objects for garbage again and again, while an import makes 400,000 that stay.

A package of its own, pyxla_torch_backend, because importing pyxla here would define every op in every program that
imports torch.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

_LIBRARY = "pyxla_set_device.so"
_OBJECTS_OF_IMPORT = 1_000_000
_WARM_POOL = "TORCH_WARM_POOL"
# What to go back to: thresholds of the search for garbage, and whether the variable was the user's.
_before: tuple[tuple[int, int, int], bool] | None = None


def load() -> None:
    """Prepares for torch_xla, which may be what imports torch, or come later or never."""
    _load_library()
    if "torch_xla" in sys.modules:
        _hasten()
    else:
        sys.meta_path.insert(0, _TorchXlaComes())


def loaded() -> None:
    """torch_xla is there: all is as before, for this process and those that it starts."""
    global _before
    if _before is not None:
        thresholds, is_users = _before
        gc.set_threshold(*thresholds)
        if not is_users:
            os.environ.pop(_WARM_POOL, None)
        _before = None


class _TorchXlaComes:
    """Finds no module: it notices that torch_xla is looked for."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch_xla":
            sys.meta_path.remove(self)
            _hasten()


def _hasten() -> None:
    global _before
    thresholds = gc.get_threshold()
    _before = thresholds, _WARM_POOL in os.environ
    os.environ.setdefault(_WARM_POOL, "0")
    # Less often, not never: should the import fail, nobody calls `loaded`.
    gc.set_threshold(_OBJECTS_OF_IMPORT, *thresholds[1:])


def _load_library() -> None:
    """Loads the function for whoever comes after; does nothing in a checkout that is not built."""
    here = Path(__file__).resolve().parent
    for folder in (here.parent.parent / "build/lib", here):
        if (folder / _LIBRARY).is_file():
            ctypes.CDLL(str(folder / _LIBRARY), mode=ctypes.RTLD_GLOBAL)
            return
