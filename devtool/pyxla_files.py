"""Imports what in pyxla needs the standard library alone, without `import pyxla`: that imports torch, in seconds."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def without_torch() -> Iterator[None]:
    """In this context `import pyxla.library.find` runs no pyxla/__init__.py. After it, pyxla is as yet not imported.

    If pyxla was imported before, nothing changes.
    """
    if "pyxla" in sys.modules:
        yield
        return
    spec = importlib.util.find_spec("pyxla")
    package = ModuleType("pyxla")
    package.__spec__, package.__path__ = spec, spec.submodule_search_locations
    sys.modules["pyxla"] = package
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "pyxla"]:
            del sys.modules[name]
