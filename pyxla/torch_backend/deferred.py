"""Defers modules that `import torch_xla` imports for a few names, some with whole compilers, until they are used.

    torch_xla.stablehlo   for two functions; it imports dynamo_bridge and torch's inductor
    functorch.compile     for three functions of torch_xla.experimental.scan; it imports AOT autograd
    torch._dynamo         for two settings, which are set when it is loaded
    requests, yaml        for TPUs

While torch_xla is imported, a stand-in replaces each of them that is not loaded yet: it has these names, and imports
the module if another name is used. Afterwards no stand-in is left in `sys.modules`; torch_xla.stablehlo and the modules
that it imports are imported when they are used, also as attributes of their packages. (Why not `importlib`'s lazy
loader: `inspect` asks every module for its file, which executes the module, at times in the middle of another import.)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

from pyxla_torch_backend.loading import around_load, rare_collections

_STABLEHLO, _DYNAMO = "torch_xla.stablehlo", "torch._dynamo"
_FUNCTIONS = {
    _STABLEHLO: ("save_as_stablehlo", "save_torch_model_as_stablehlo"),
    "functorch.compile": ("aot_function", "make_boxed_func", "default_partition"),
}
_FOR_TPUS = ("requests", "yaml")
_SETTINGS = ("automatic_dynamic_shapes", "specialize_float")
# What torch_xla.stablehlo imports, also through inductor: the first ones cost little, and some define operators.
_BROUGHT = (
    "torch.ao.quantization.fx._decomposed",
    "torch_xla.experimental.quantized",
    "torch_xla.experimental.stablehlo_custom_call",
    "torch_xla.experimental.xla_dynamic_reshape_ops",
    "torch_xla.utils.buffer_donor_context",
    "torch_xla.utils.dlpack",
)
_BROUGHT_LATER = (
    "torch_xla._dynamo.dynamo_bridge",
    "torch_xla.experimental.unbounded_dynamism_export",
    "torch_xla.stablehlo",
)

_stand_ins: dict[str, ModuleType] = {}


def begin() -> None:
    """Puts the stand-ins where torch_xla will look."""
    for name, functions in _FUNCTIONS.items():
        _put(_StandIn(name, {function: _later(name, function) for function in functions}))
    for name in _FOR_TPUS:
        _put(_StandIn(name, {}))
    _put(_StandIn(_DYNAMO, {"config": _Settings()}))


def end() -> None:
    """Removes the stand-ins; the settings are applied when torch._dynamo is imported. A second call does nothing."""
    if not _stand_ins:
        return
    for name in _stand_ins:
        _take_out(name)
    settings = vars(_stand_ins[_DYNAMO].config) if _DYNAMO in _stand_ins else {}
    if _DYNAMO in _stand_ins and _DYNAMO not in sys.modules:
        around_load(_DYNAMO, lambda: _with_settings(settings))
    torch_xla = sys.modules.get("torch_xla")
    # torch_xla took its functions from the stand-in, and nothing else needed the module.
    if _STABLEHLO in _stand_ins and _STABLEHLO not in sys.modules and hasattr(torch_xla, "save_as_stablehlo"):
        for module in _BROUGHT:
            importlib.import_module(module)
        for module in _BROUGHT_LATER:
            _import_when_asked_for(module)
    _stand_ins.clear()


class _StandIn(ModuleType):
    def __init__(self, name: str, contents: dict[str, object]):
        super().__init__(name)
        vars(self).update(contents)

    def __getattr__(self, name: str) -> object:
        # Python asks every module for names like __file__, at times in the middle of another import. To import a
        # submodule it needs the real __path__; the two modules with functions have none, and Python asks for their
        # __path__ whenever it imports a name from them.
        of_the_module = ("__version__", "__all__", *(() if self.__name__ in _FUNCTIONS else ("__path__",)))
        if name.startswith("__") and name not in of_the_module:
            raise AttributeError(name)
        return getattr(_fetch(self.__name__), name)


class _Settings:
    """torch._dynamo.config before it is imported: keeps the two settings; any other name imports torch._dynamo."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _SETTINGS and isinstance(sys.modules.get(_DYNAMO), _StandIn):
            vars(self)[name] = value
        else:
            setattr(_fetch(_DYNAMO).config, name, value)

    def __getattr__(self, name: str) -> object:
        return getattr(_fetch(_DYNAMO).config, name)


def _put(stand_in: _StandIn) -> None:
    if stand_in.__name__ not in sys.modules:
        _stand_ins[stand_in.__name__] = sys.modules[stand_in.__name__] = stand_in


def _take_out(name: str) -> ModuleType | None:
    return sys.modules.pop(name) if isinstance(sys.modules.get(name), _StandIn) else None


def _fetch(name: str) -> ModuleType:
    """Imports the module itself."""
    stand_in = _take_out(name)
    module = importlib.import_module(name)
    if name == _DYNAMO and stand_in is not None:
        _set(vars(stand_in.config))
    return module


def _later(module: str, name: str) -> Callable:
    def function(*args, **kwargs):
        return getattr(_fetch(module), name)(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    return function


@contextmanager
def _with_settings(settings: dict[str, object]) -> Iterator[None]:
    with rare_collections():
        yield
    _set(settings)


def _set(settings: dict[str, object]) -> None:
    for name, value in settings.items():
        setattr(sys.modules[_DYNAMO].config, name, value)


def _import_when_asked_for(name: str) -> None:
    """Imports the module when it is used as an attribute of its package, which it is after an unchanged import."""
    parent, _, last = name.rpartition(".")
    package = importlib.import_module(parent)

    def __getattr__(attribute: str) -> object:
        if attribute == last:
            return importlib.import_module(name)
        return object.__getattribute__(package, attribute)

    package.__getattr__ = __getattr__
