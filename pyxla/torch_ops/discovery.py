"""Defines ops from their Python files: each `<package>/<op>/<op>.py` declares one with `custom_op`.

The file in an implementation's folder declares it with `implementation`.
"""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

from pyxla.errors import DefinitionError, mismatch, warn
from pyxla.packages import NAMESPACE, KernelPackage, kernel_packages, package_of_folder
from pyxla.torch_ops.implementation import choose_from_environment

#: Module of an op or implementation -> the exception that it raised. A second import would raise another one if the
#: file had declared its op before it failed.
FAILED: dict[str, Exception] = {}


def load_op(folder: str, namespace: str = NAMESPACE) -> None:
    """Imports the Python file in the folder of an op, which defines `torch.ops.<namespace>.<op>`."""
    package = package_of_folder(folder, namespace)
    if package is None:
        raise DefinitionError(mismatch(folder, "package", f"a kernel package of {namespace} with it", "none"))
    importlib.import_module(package.module(folder))


def load_all() -> None:
    """Defines every op and every implementation of all kernel packages, and applies PYXLA_IMPLEMENTATION.

    One that cannot be defined causes a warning, also where warnings are errors; the others are still defined.
    """
    for package in kernel_packages():
        _load(package)
    choose_from_environment()


def _load(package: KernelPackage) -> None:
    folders = package.folders()
    for folder in sorted(folders, key=lambda name: folders[name] is not None):
        module, op = package.module(folder), folders[folder]
        if op and package.module(op) in FAILED:
            FAILED[module] = FAILED[package.module(op)]
            continue
        try:
            importlib.import_module(module)
        except Exception as error:
            FAILED[module] = error
            name = folder if package.namespace == NAMESPACE else f"{package.namespace}::{folder}"
            got = _describe(error, package)
            warn(f"{name}: definition: expected an importable {folder}.py, got {got}")


def _describe(error: Exception, package: KernelPackage) -> str:
    """The exception, with the file and line of the op that raised it."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if package.folder in Path(f.filename).resolve().parents]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{where}"
