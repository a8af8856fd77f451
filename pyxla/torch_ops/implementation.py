"""Further implementations of an op: they share its schema, reference and gradient; each has its own library and target.

An implementation is an overload of the op, `torch.ops.xla_gpu.<op>.<name>`, so graphs and exported programs record the
one that they call. Each process chooses which one `torch.ops.xla_gpu.<op>` itself calls (`use_implementation`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch

from pyxla.errors import ArgumentError, DefinitionError, mismatch
from pyxla.op.arguments import Check
from pyxla.packages import implemented_op, package_of_path
from pyxla.torch_ops.custom_op import CustomOp, find_op

# The name of the op's own implementation, which is in the op's folder.
DEFAULT = "default"
VARIABLE = "PYXLA_IMPLEMENTATION"
_chosen: dict[str, str] = {}


class Implementation(CustomOp):
    """An implementation of an op besides the op's own; `implementation` makes it. It is called like the op.

    Attributes:
        op: the op, with which it shares schema, reference, gradient and shardings.
    """

    def __init__(self, op: CustomOp, name: str, folder: str):
        if name == DEFAULT:
            message = mismatch(folder, "implementation", "a name other than default, the op's own", name)
            raise DefinitionError(message, f"rename the folder: mv {folder} {op.name}_fast")
        mutates = tuple(argument.name for argument in op.schema.mutated)
        super().__init__(
            op.reference,
            mutates,
            folder,
            implementation=name,
            gradient=op._gradient,
            results=op.schema.named_results,
        )
        self.op, self._check, self._workspace = op, None, op._workspace
        self.shardings = op.shardings
        super().register_fake(self._infer)
        op.implementations[name] = self

    def register_check(self, check: Callable) -> Callable:
        """Registers a check for what the op takes and this implementation does not: `check(check, *arguments)`.

        It gets a `pyxla.Check` whose messages name the implementation, and all arguments in order. It runs after the
        op's own checks.
        """
        self._check = check
        return check

    def takes(self, arguments: dict[str, Any]) -> bool:
        """Whether XLA tensors of these dtypes and shapes, with these other arguments, pass the op's checks and its own.

        Args:
            arguments: by name.
        """
        values = self.schema.bind((), arguments)
        try:
            self.infer_results(tuple(v.to("meta") if isinstance(v, torch.Tensor) else v for v in values))
        except ArgumentError:
            return False
        return True

    def register_fake(self, fake: Callable) -> Callable:
        """Not allowed: an implementation has the op's fake function."""
        raise DefinitionError(
            mismatch(self.name, "fake function", f"that of {self.op.name}", "another"), "register_check"
        )

    def register_autograd(self, backward: Callable, *, setup_context: Callable | None = None) -> None:
        """Not allowed: an implementation has the op's gradient."""
        raise DefinitionError(
            mismatch(self.name, "gradient", f"that of {self.op.name}", "another"), f"@{self.op.name}.register_autograd"
        )

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self.schema.bind(args, kwargs)
        results = self.op._fake(*arguments)
        if self._check:
            self._check(Check(self.op.name, self.name.partition(".")[2]), *arguments)
        return results


def implementation(file: str) -> Implementation:
    """Declares the implementation in whose folder this file is: `triton = implementation(__file__)`.

    The folder's file `implements` names the op, and the folder is called `<op>_<name>`. The implementation has the
    op's workspace unless it registers another (`register_workspace`).

    Args:
        file: the Python file that calls it.

    Raises:
        DefinitionError: no file `implements`, a folder with another name, or a name that is taken or "default".
    """
    folder = Path(file).resolve().parent
    op, package = implemented_op(folder.parent, folder.name), package_of_path(folder)
    if op is None:
        raise DefinitionError(
            mismatch(folder.name, "implements", "a file with the name of the op", "none"),
            f"echo my_op > {folder / 'implements'}",
        )
    name = folder.name.removeprefix(f"{op}_")
    if name == folder.name or not name:
        raise DefinitionError(mismatch(folder.name, "folder", f"{op}_ and the implementation's name", folder.name))
    if package:
        importlib.import_module(package.module(op))
    return Implementation(find_op(f"{package.namespace}::{op}" if package else op), name, folder.name)


def use_implementation(op: str, name: str) -> AbstractContextManager:
    """Chooses the implementation that calls of an op on XLA tensors run, in this process or until a `with` block ends.

    It affects calls that name no implementation: `torch.ops.xla_gpu.rms_norm`, not `torch.ops.xla_gpu.rms_norm.triton`.
    A new choice drops all graphs of torch.compile, which then compiles anew. Call it outside of compiled functions.

    Args:
        op: name of the op.
        name: one of `op.implementations`, or "default" for the op's own.

    Returns:
        A context manager that restores the earlier choice.

    Raises:
        DefinitionError: no such op.
        ArgumentError: the op has no such implementation.
    """
    chosen = find_op(op)
    before = _chosen.get(chosen.qualified_name, DEFAULT)
    _choose(chosen, name)
    back = ExitStack()
    back.callback(_choose, chosen, before)
    return back


def chosen_implementation(op: str) -> str:
    """The name of the implementation that calls of the op run; "default" is the op's own."""
    return _chosen.get(find_op(op).qualified_name, DEFAULT)


def choose_from_environment() -> None:
    """Chooses the implementations that PYXLA_IMPLEMENTATION names: `rms_norm=triton,paged_attention=flashinfer`.

    Raises:
        DefinitionError: no such op.
        ArgumentError: the op has no such implementation, or an entry has another form.
    """
    for entry in filter(None, os.environ.get(VARIABLE, "").split(",")):
        op, separator, name = entry.strip().partition("=")
        if not separator:
            raise ArgumentError(mismatch(VARIABLE, "entry", "OP=IMPLEMENTATION", repr(entry)), "rms_norm=triton")
        use_implementation(op, name)


def _choose(op: CustomOp, name: str) -> None:
    if name != DEFAULT and name not in op.implementations:
        names = " or ".join((DEFAULT, *sorted(op.implementations)))
        raise ArgumentError(mismatch(op.name, "implementation", names, repr(name)), "devtool list shows them")
    if _chosen.get(op.qualified_name, DEFAULT) == name:
        return
    _chosen[op.qualified_name] = name
    op.lower_to(op.implementations.get(name, op))
    # Dynamo's graphs contain the calls that were emitted during tracing, without a guard on the choice.
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
