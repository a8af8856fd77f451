"""`import torch` calls `load` through the entry point of group `torch.backends`, so that torch_xla can load, and fast.

If torch sees a GPU, `import torch_xla` 2.8.1 needs a function that torch 2.8.0 has in another form, and fails. The
library next to this file has the old form, which calls the new one. If torch sees no GPU, torch_xla brings its own.
torch_xla 2.9 has no such code.

Two things make `import torch_xla` slow and are of no use to it:

- For a few names it imports torch's compilers, dynamo, AOT autograd and inductor: half of its time. Here they are
  imported when they are used (deferred.py).
- Python's garbage collector scans all objects again and again, while the import makes 400,000 that stay.

If triton is installed, importing inductor would start a process with workers at once and wait for it when the program
ends. In a program with torch_xla, TORCH_WARM_POOL=0 makes inductor start them when there is something to compile.

The faster import is for the pairs of versions that pyxla was tried with. The import of other versions, or of any
version with PYXLA_DEFERRED_IMPORT=0, is not changed.

With PJRT_DEVICE=CUDA it also loads NVIDIA's driver, which Nix's loader does not find by name. The import of torch_xla
begins with torch's search for a GPU, before it imports pyxla, and torch searches once.

This is a package of its own, pyxla_torch_backend, because importing pyxla here would define every op in every program
that imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from pyxla_torch_backend import deferred
from pyxla_torch_backend.loading import around_load, collect_rarely, rare_collections

_LIBRARY = "pyxla_set_device.so"
_WARM_POOL = "TORCH_WARM_POOL"
_SWITCH = "PYXLA_DEFERRED_IMPORT"
# torch_xla -> torch, as in pyxla/torch_xla_patches, which cannot be imported here.
_PAIRS = {"2.9.0": ("2.9.1", "2.9.0"), "2.8.1": ("2.8.0",)}
# The last module that torch_xla imports: if torch_xla imported torch, the end of its import cannot be seen here.
_LAST_PART = "torch_xla._internal.c10d_registration"
# The thresholds of the garbage collector to restore.
_thresholds: tuple[int, int, int] | None = None


def load() -> None:
    """Prepares for torch_xla, which may be importing torch now, or may be imported later or never."""
    _load_library()
    if os.environ.get("PJRT_DEVICE") == "CUDA":
        _load_driver()
    if "torch_xla" not in sys.modules:
        around_load("torch_xla", _faster_import)
    elif _is_wanted():
        _begin()
        around_load(_LAST_PART, _before_the_end)


def loaded() -> None:
    """Called when torch_xla has been imported: restores everything, for this process and those that it starts."""
    global _thresholds
    if _thresholds is not None:
        gc.set_threshold(*_thresholds)
        _thresholds = None
    deferred.end()


def _is_wanted() -> bool:
    """Whether the versions are those whose import is changed, and the user has not switched that off."""
    if os.environ.get(_SWITCH) == "0":
        return False
    return _version("torch") in _PAIRS.get(_version("torch_xla"), ())


def _version(package: str) -> str:
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def _begin() -> None:
    global _thresholds
    # Rarely, not never: nothing calls `loaded` if torch_xla imports torch and fails later.
    _thresholds = collect_rarely()
    deferred.begin()
    around_load("torch_xla._dynamo.dynamo_bridge", rare_collections)
    around_load("torch._inductor.async_compile", _without_workers)


@contextmanager
def _faster_import() -> Iterator[None]:
    if _is_wanted():
        _begin()
    try:
        yield
    finally:
        loaded()


@contextmanager
def _before_the_end() -> Iterator[None]:
    yield
    loaded()


@contextmanager
def _without_workers() -> Iterator[None]:
    is_users = _WARM_POOL in os.environ
    os.environ.setdefault(_WARM_POOL, "0")
    try:
        yield
    finally:
        if not is_users:
            os.environ.pop(_WARM_POOL, None)


def _load_library() -> None:
    """Loads the library with the function that torch_xla 2.8 needs; does nothing in a checkout that is not built."""
    if not _version("torch_xla").startswith("2.8."):
        return
    here = Path(__file__).resolve().parent
    for folder in (here.parent.parent / "build/lib", here):
        if (folder / _LIBRARY).is_file():
            ctypes.CDLL(str(folder / _LIBRARY), mode=ctypes.RTLD_GLOBAL)
            return


def _load_driver() -> None:
    """Runs pyxla/pjrt/driver.py without `import pyxla`. If there is no driver, pyxla says so later."""
    if package := importlib.util.find_spec("pyxla"):
        path = Path(package.submodule_search_locations[0], "pjrt/driver.py")
        spec = importlib.util.spec_from_file_location("pyxla_torch_backend.driver", path)
        driver = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(driver)
        with contextlib.suppress(OSError):
            driver.load()
