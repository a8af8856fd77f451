"""Further implementations of an op: one schema, reference and gradient, and for each its own library and target.

An implementation is an overload of the op, `torch.ops.xla_gpu.<op>.<name>`, so graphs and exported programs hold which
one they call. What `torch.ops.xla_gpu.<op>` itself calls is a choice of the process's (`use_implementation`).
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
from pyxla.library.find import KERNELS_PACKAGE
from pyxla.library.source_digest import implemented_op
from pyxla.op.arguments import Check
from pyxla.torch_ops.custom_op import CustomOp, find_op

# Of the op's own implementation, which has no folder but the op's.
DEFAULT = "default"
VARIABLE = "PYXLA_IMPLEMENTATION"
_chosen: dict[str, str] = {}


class Implementation(CustomOp):
    """An implementation of an op beside its own; `implementation` makes it. It is called as the op is.

    Attributes:
        op: the op. Its schema, reference, gradient and ways to shard are this one's too.
    """

    def __init__(self, op: CustomOp, name: str, folder: str):
        if name == DEFAULT:
            message = mismatch(folder, "implementation", "a name other than default, the op's own", name)
            raise DefinitionError(message, f"rename the folder: mv {folder} {op.name}_fast")
        mutates = tuple(argument.name for argument in op.schema.mutated)
        super().__init__(op.reference, mutates, folder, implementation=name, gradient=op._gradient)
        self.op, self._check, self._workspace = op, None, op._workspace
        self.shardings = op.shardings
        super().register_fake(self._infer)
        op.implementations[name] = self

    def register_check(self, check: Callable) -> Callable:
        """Registers the check of what the op takes and this implementation does not: `check(check, *arguments)`.

        It gets a `pyxla.Check` whose messages name the implementation, and all arguments in order, which the op's own
        checks have passed.
        """
        self._check = check
        return check

    def takes(self, arguments: dict[str, Any]) -> bool:
        """Whether XLA tensors of these dtypes and shapes, and these other arguments, pass the op's checks and its own.

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
        """Refused: the op's is this one's too."""
        raise DefinitionError(
            mismatch(self.name, "fake function", f"that of {self.op.name}", "another"), "register_check"
        )

    def register_autograd(self, backward: Callable, *, setup_context: Callable | None = None) -> None:
        """Refused: the op's is this one's too."""
        raise DefinitionError(mismatch(self.name, "gradient", f"that of {self.op.name}", "another"))

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self.schema.bind(args, kwargs)
        results = self.op._fake(*arguments)
        if self._check:
            self._check(Check(self.op.name, self.name.partition(".")[2]), *arguments)
        return results


def implementation(file: str) -> Implementation:
    """Declares the implementation whose folder this file is in: `triton = implementation(__file__)`.

    The folder's file `implements` names the op, and the folder is called `<op>_<name>`. The implementation has the
    op's workspace unless it registers another (`register_workspace`).

    Args:
        file: the Python file that calls it.

    Raises:
        DefinitionError: no `implements`, a folder of another name, or a name that is taken.
    """
    folder = Path(file).resolve().parent
    op = implemented_op(folder.parent, folder.name)
    if op is None:
        raise DefinitionError(
            mismatch(folder.name, "implements", "a file with the name of the op", "none"),
            f"echo my_op > {folder / 'implements'}",
        )
    name = folder.name.removeprefix(f"{op}_")
    if name == folder.name or not name:
        raise DefinitionError(mismatch(folder.name, "folder", f"{op}_ and the implementation's name", folder.name))
    importlib.import_module(f"{KERNELS_PACKAGE}.{op}.{op}")
    return Implementation(find_op(op), name, folder.name)


def use_implementation(op: str, name: str) -> AbstractContextManager:
    """Chooses what calls of an op on XLA tensors run in this process; in a `with` block, until its end.

    It is for calls that name none: `torch.ops.xla_gpu.rms_norm`, not `torch.ops.xla_gpu.rms_norm.triton`. What
    torch.compile made before is made anew: a choice drops all its graphs. Call it outside of compiled functions.

    Args:
        op: name of the op.
        name: of `op.implementations`, or "default", the op's own.

    Returns:
        A context manager that takes the choice back.

    Raises:
        DefinitionError: no such op.
        ArgumentError: the op has no such implementation.
    """
    chosen = find_op(op)
    before = _chosen.get(op, DEFAULT)
    _choose(chosen, name)
    back = ExitStack()
    back.callback(_choose, chosen, before)
    return back


def chosen_implementation(op: str) -> str:
    """The name of the implementation that calls of the op run: "default" is its own."""
    return _chosen.get(op, DEFAULT)


def choose_from_environment() -> None:
    """Chooses what PYXLA_IMPLEMENTATION says: `rms_norm=triton,paged_attention=flashinfer`.

    Raises:
        DefinitionError, ArgumentError: it names no op, or no implementation.
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
    if _chosen.get(op.name, DEFAULT) == name:
        return
    _chosen[op.name] = name
    op.lower_to(op.implementations.get(name, op))
    # What dynamo compiled holds the calls that were emitted while it was traced, and no guard on the choice.
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
