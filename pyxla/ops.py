"""Defines ops from their Python files: each `pyxla_kernels/<op>/<op>.py` declares one with `custom_op`."""

from __future__ import annotations

import importlib
import warnings

from pyxla.libraries import KERNELS_PACKAGE, op_names
from pyxla.registry import register_preloaded


def load_op(name: str) -> None:
    """Imports the op's Python file, which defines `torch.ops.xla_gpu.<name>`."""
    importlib.import_module(f"{KERNELS_PACKAGE}.{name}.{name}")


def load_all() -> None:
    """Defines every op. One that cannot be defined is reported in a warning and does not keep the others away."""
    for name in op_names():
        try:
            load_op(name)
        except Exception as error:
            warnings.warn(
                f"{name}: definition: expected an importable {name}.py, got {type(error).__name__}: {error}",
                stacklevel=2,
            )


def load_preloaded() -> None:
    """Registers the handlers of the preloaded libraries and defines their ops."""
    known = set(op_names())
    for library in register_preloaded():
        if library.table.op in known:
            load_op(library.table.op)
        else:
            warnings.warn(
                f"{library.table.op}: definition: expected {library.table.op}.py, got none for {library.path}",
                stacklevel=2,
            )
