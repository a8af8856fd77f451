"""The definition of an op: what its author declares, before anything is registered with torch or XLA."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping

from pyxla.errors import DefinitionError, mismatch
from pyxla.op.placements import Sharding
from pyxla.op.schema import Schema
from pyxla.packages import NAMESPACE, KernelPackage, package_of_module


class Definition:
    """An op as its author declares it, or another implementation of it.

    Attributes:
        name: name of the op, or `<op>.<implementation>`.
        schema: arguments and results.
        reference: the author's function.
        package: the kernel package that declares it, or None: then the namespace is that of pyxla's own ops.
        library: the folder whose library holds the handlers.
        shardings: the ways in which `pyxla.shard` may split it, by name.
    """

    def __init__(
        self,
        function: Callable,
        mutates: tuple[str, ...],
        library: str | None = None,
        implementation: str | None = None,
        results: tuple[str, ...] = (),
    ):
        self.name = f"{function.__name__}.{implementation}" if implementation else function.__name__
        self.package: KernelPackage | None = package_of_module(function.__module__)
        self.library = library or self.name
        self.reference = function
        self.schema = Schema.infer(function, mutates, results)
        self.shardings: dict[str, Sharding] = {}
        self._fake: Callable | None = None
        self._workspace: Callable | None = None
        self.__doc__ = function.__doc__
        self.__signature__ = inspect.signature(function)

    def __repr__(self) -> str:
        return f"<pyxla op {self.qualified_name}{self.schema.text}>"

    @property
    def namespace(self) -> str:
        """The op is `torch.ops.<namespace>.<name>`."""
        return self.package.namespace if self.package else NAMESPACE

    @property
    def qualified_name(self) -> str:
        """The op's name with its namespace: `xla_gpu::rms_norm`."""
        return f"{self.namespace}::{self.name}"

    @property
    def target(self) -> str:
        """The custom call's target: `<namespace>_<op>`, for an implementation `<namespace>_<op>_<implementation>`."""
        return f"{self.namespace}_{self.name.replace('.', '_')}"

    @property
    def display_name(self) -> str:
        """The op's name, with its namespace unless that is pyxla's own: what `pyxla.find_op` finds it by."""
        return self.name if self.namespace == NAMESPACE else self.qualified_name

    def declared_in(self) -> str:
        """The kernel package, if there is one, and the file, for a message."""
        file = self.reference.__code__.co_filename
        return f"declared by {self.package.name} in {file}" if self.package else f"declared in {file}"

    def register_workspace(self, workspace_bytes: Callable) -> Callable:
        """Registers how many bytes the CUDA handler needs besides operands and results, as a function of the arguments.

        It gets the same arguments as the fake function. XLA plans this memory with the rest of the graph, also inside a
        captured command buffer; the handler gets it, uninitialised, as its last result: uint8 [bytes], on the CPU [0].
        """
        self._workspace = workspace_bytes
        return workspace_bytes

    @property
    def has_workspace(self) -> bool:
        """Whether the op has registered a workspace."""
        return self._workspace is not None

    def workspace_bytes(self, arguments: tuple, platform: str) -> int | None:
        """Bytes of the workspace for these arguments, all in order (0 on the CPU); None if the op has none."""
        if self._workspace is None:
            return None
        return int(self._workspace(*arguments)) if platform == "CUDA" else 0

    def register_sharding(self, by: str, *, operands: Mapping[str, int], results: Iterable[int | None] = ()) -> None:
        """Declares a way to split the op over devices without communication between them, for `pyxla.shard`.

        Args:
            by: its name, such as "heads".
            operands: argument -> dimension that is split, negative from the end; others are whole on every device.
            results: for each result that the op returns, the dimension along which the devices' parts are joined; None
                for a result that every device computes whole.

        Raises:
            DefinitionError: an argument that is not a tensor of the op, or another number of results.
        """
        self.shardings[by] = Sharding.declare(self.name, self.schema, by, operands, results)

    def infer_results(self, arguments: tuple) -> tuple:
        """Runs the fake function: checks the arguments and returns the results, empty tensors, as a tuple.

        Raises:
            ArgumentError: the op does not take these arguments.
            DefinitionError: the op has no fake function.
        """
        if self._fake is None:
            raise DefinitionError(
                mismatch(self.name, "fake function", "one", "none"), f"add @{self.name}.register_fake"
            )
        results = self._fake(*arguments)
        return results if isinstance(results, tuple) else () if results is None else (results,)
