"""With PJRT_DEVICE=CUDA: starts the driver and loads the plugin and its libraries beside the import of torch_xla.

The driver needs 0.1 s to start, and the libraries take as long to load; the import of torch_xla waits for both at its
end, when pyxla checks them. A thread does it from the beginning of that import, not of torch's: a program that uses
torch alone may start CUDA in a child process, which a driver that its parent has started would prevent.

Errors are pyxla's to raise: it repeats each step, which costs nothing the second time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path
from threading import Thread
from types import ModuleType

_SWITCH = "PYXLA_EARLY_CUDA"
_thread: Thread | None = None


def load_driver() -> None:
    """Loads NVIDIA's driver. If there is none, pyxla says so later."""
    if driver := _part_of_pyxla("driver"):
        with contextlib.suppress(OSError):
            driver.load()


def begin() -> None:
    """Starts the thread; does nothing on another device."""
    global _thread
    if os.environ.get("PJRT_DEVICE") == "CUDA" and os.environ.get(_SWITCH) != "0" and _thread is None:
        _thread = Thread(target=_start, name="pyxla: start of CUDA", daemon=True)
        _thread.start()


def end() -> None:
    """Waits for the thread: a program that ends now would otherwise end while libraries are being loaded."""
    if _thread is not None:
        _thread.join()


def _start() -> None:
    driver, libraries = _part_of_pyxla("driver"), _part_of_pyxla("cuda_libraries")
    if driver and libraries:
        with contextlib.suppress(OSError):
            driver.load().cuInit(0)
            libraries.load_early()


def _part_of_pyxla(name: str) -> ModuleType | None:
    """Runs a file of pyxla/pjrt that needs only the standard library, without `import pyxla`."""
    package = importlib.util.find_spec("pyxla")
    if package is None:
        return None
    path = Path(package.submodule_search_locations[0], f"pjrt/{name}.py")
    spec = importlib.util.spec_from_file_location(f"pyxla_torch_backend.{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
