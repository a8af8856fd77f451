"""What `import torch` calls, through the entry point of group `torch.backends`: it lets torch_xla load beside a GPU.

Where torch sees a GPU, `import torch_xla` 2.8.1 wants a function that torch 2.8.0 has in another form, and fails. The
library beside this file has the old form and calls the new one. Where torch sees none, torch_xla brings its own.

A package of its own, pyxla_torch_backend, because importing pyxla here would define every op in every program that
imports torch.
"""

import ctypes
from pathlib import Path

_LIBRARY = "pyxla_set_device.so"


def load() -> None:
    """Loads the function for whoever comes after; does nothing in a checkout that is not built."""
    here = Path(__file__).resolve().parent
    for folder in (here.parent.parent / "build/lib", here):
        if (folder / _LIBRARY).is_file():
            ctypes.CDLL(str(folder / _LIBRARY), mode=ctypes.RTLD_GLOBAL)
            return
