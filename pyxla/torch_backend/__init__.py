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
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

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
    """Finds torch_xla as the other finders do, to be there when it is loaded: libraries may only ask whether it is."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch_xla":
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Hastened(spec.loader)
        return spec


class _Hastened(Loader):
    """Loads a module as its own loader does, and sooner."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        _hasten()
        try:
            self._loader.exec_module(module)
        finally:
            loaded()


def _hasten() -> None:
    global _before
    thresholds = gc.get_threshold()
    _before = thresholds, _WARM_POOL in os.environ
    os.environ.setdefault(_WARM_POOL, "0")
    # Less often, not never: nobody calls `loaded` if an import fails that imports torch, too.
    gc.set_threshold(_OBJECTS_OF_IMPORT, *thresholds[1:])


def _load_library() -> None:
    """Loads the function for whoever comes after; does nothing in a checkout that is not built."""
    here = Path(__file__).resolve().parent
    for folder in (here.parent.parent / "build/lib", here):
        if (folder / _LIBRARY).is_file():
            ctypes.CDLL(str(folder / _LIBRARY), mode=ctypes.RTLD_GLOBAL)
            return
