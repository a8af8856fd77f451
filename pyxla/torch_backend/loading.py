"""Context managers around the execution of a module, whoever imports it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

Around = Callable[[], AbstractContextManager]
_OBJECTS_OF_IMPORT = 1_000_000


def around_load(name: str, around: Around) -> None:
    """Executes the module inside `around()`, whenever it is imported."""
    sys.meta_path.insert(0, _Finder(name, around))


def collect_rarely() -> tuple[int, int, int]:
    """Makes the garbage collector run rarely, not never; returns the thresholds to restore."""
    thresholds = gc.get_threshold()
    gc.set_threshold(_OBJECTS_OF_IMPORT, *thresholds[1:])
    return thresholds


@contextmanager
def rare_collections() -> Iterator[None]:
    """Makes the garbage collector run rarely, for imports of many modules, whose objects stay."""
    thresholds = collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


class _Finder:
    """Finds the module as the later finders do and wraps its loader; a library may ask for the spec alone."""

    def __init__(self, name: str, around: Around):
        self._name = name
        self._around = around

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in behind if hasattr(finder, "find_spec"))
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._around)
        return spec


class _Loader(Loader):
    """Loads a module as its own loader does."""

    def __init__(self, loader: Loader, around: Around):
        self._loader = loader
        self._around = around

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        with self._around():
            self._loader.exec_module(module)
