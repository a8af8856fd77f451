"""Loads files of pyxla that need only the standard library, without `import pyxla`: that imports torch, in seconds."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def load_file(name: str) -> ModuleType:
    """The module of a file: "pjrt/driver.py"."""
    (package,) = importlib.util.find_spec("pyxla").submodule_search_locations
    spec = importlib.util.spec_from_file_location(f"pyxla_{Path(name).stem}", Path(package, name))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
