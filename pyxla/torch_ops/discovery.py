"""Defines ops from their Python files: each `pyxla_kernels/<op>/<op>.py` declares one with `custom_op`.

The file in an implementation's folder declares it with `implementation`.
"""

from __future__ import annotations

import importlib
import warnings

from pyxla.library.find import KERNELS_PACKAGE, implementations, op_names
from pyxla.torch_ops.implementation import choose_from_environment


def load_op(name: str) -> None:
    """Imports the op's Python file, which defines `torch.ops.xla_gpu.<name>`."""
    importlib.import_module(f"{KERNELS_PACKAGE}.{name}.{name}")


def load_all() -> None:
    """Defines every op and every implementation, and applies PYXLA_IMPLEMENTATION.

    One that cannot be defined causes a warning; the others are still defined.
    """
    for name in (*op_names(), *implementations()):
        try:
            load_op(name)
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
            warnings.warn(f"{name}: definition: expected an importable {name}.py, got {got}", stacklevel=2)
    choose_from_environment()
