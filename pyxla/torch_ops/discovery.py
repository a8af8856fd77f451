"""Defines ops from their Python files: each `pyxla_kernels/<op>/<op>.py` declares one with `custom_op`.

The file in an implementation's folder declares it with `implementation`.
"""

from __future__ import annotations

import importlib
import re
import traceback
import warnings
from pathlib import Path

from pyxla.library.find import KERNELS_PACKAGE, implementations, kernels_folder, op_names
from pyxla.torch_ops.implementation import choose_from_environment

#: Folder of an op or implementation -> the exception that its Python file raised. A second import would raise another
#: one if the file had declared its op before it failed.
FAILED: dict[str, Exception] = {}


def load_op(name: str) -> None:
    """Imports the op's Python file, which defines `torch.ops.xla_gpu.<name>`."""
    importlib.import_module(f"{KERNELS_PACKAGE}.{name}.{name}")


def load_all() -> None:
    """Defines every op and every implementation, and applies PYXLA_IMPLEMENTATION.

    One that cannot be defined causes a warning, also where warnings are errors; the others are still defined.
    """
    op_of = implementations()
    for name in (*op_names(), *op_of):
        if op_of.get(name) in FAILED:
            FAILED[name] = FAILED[op_of[name]]
            continue
        try:
            load_op(name)
        except Exception as error:
            FAILED[name] = error
            _warn(f"{name}: definition: expected an importable {name}.py, got {_describe(error)}")
    choose_from_environment()


def _warn(message: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=re.escape(message))
        warnings.warn(message, stacklevel=3)


def _describe(error: Exception) -> str:
    """The exception, with the file and line of the op that raised it."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if (kernels_folder() or Path()) in Path(f.filename).resolve().parents]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{where}"
