"""The decorator that makes a torch op of a typed Python function; on XLA the op is a custom call.

Why not torch.library.custom_op: it wraps every kernel in Python layers that cost more than the call itself, and its
in-place ops do not reach XLA (torch_xla runs on functional tensors, whose fallback refuses an op that mutates).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch._library.autograd import Info, make_autograd_impl

from pyxla.errors import ArgumentError, DefinitionError, mismatch
from pyxla.lowering.fast_path import FastPath
from pyxla.lowering.lower import Lowering
from pyxla.op.definition import Definition
from pyxla.packages import NAMESPACE
from pyxla.torch_ops.functional import InPlace
from pyxla.torch_ops.vmap import register_vmap

# Namespace -> the library in which torch keeps its ops.
_libraries: dict[str, torch.library.Library] = {}
# Qualified name -> op.
_ops: dict[str, CustomOp] = {}


def custom_op(
    function: Callable | None = None,
    *,
    mutates: Iterable[str] = (),
    results: Iterable[str] = (),
    library: str | None = None,
) -> Any:
    """Declares `torch.ops.<namespace>.<function name>`; the function is its reference.

    The namespace is that of the kernel package in which the function is, else `xla_gpu`. The function runs on CPU and
    CUDA tensors, and in float64 as the oracle of the tests; on XLA tensors the op is the custom call
    `<namespace>_<name>`. Its annotations give the schema: torch.Tensor, int, float, bool, str, list[int], list[float],
    Tensor, int or float with `| None`, one torch.device (for an op without tensor arguments). It returns a Tensor, a
    tuple of Tensors, or None if it only works in place.

    Args:
        function: the reference. It must not modify an argument that is not in `mutates`, nor return one.
        mutates: names of the tensor arguments that the op updates in place: in the custom call each becomes a result
            that shares its operand's buffer, before the other results.
        results: names of the results, for the schema, `-> (Tensor weights, Tensor ids)`, and messages; all or none.
            A call returns a plain tuple.
        library: the op whose library also has this op's handlers, if several ops share a folder; None: its own.

    Returns:
        CustomOp, to be completed with `register_fake` and, where there is a gradient, `register_autograd`.

    Raises:
        DefinitionError: a custom call cannot have an argument's type, or the name is taken.
    """
    options = {"mutates": tuple(mutates), "results": tuple(results), "library": library}
    return partial(CustomOp, **options) if function is None else CustomOp(function, **options)


def find_op(name: str) -> CustomOp:
    """The op of this name, or the implementation `<op>.<name>`.

    Args:
        name: `<namespace>::<op>`; or the op alone, which is pyxla's own op or that of the only package that has it.

    Raises:
        DefinitionError: it is not declared, or several packages have it.
    """
    if found := _ops.get(name) or _ops.get(f"{NAMESPACE}::{name}"):
        return found
    others = [op for op in _ops.values() if op.name == name]
    if len(others) == 1:
        return others[0]
    if others:
        got = " and ".join(sorted(op.qualified_name for op in others))
        raise DefinitionError(mismatch(name, "op", "its namespace too, as several packages have it", got))
    known = ", ".join(sorted(op.name if op.namespace == NAMESPACE else op.qualified_name for op in _ops.values()))
    raise DefinitionError(mismatch(name, "op", "one that is declared", known or "none"), "devtool list")


def find_target(target: str) -> CustomOp | None:
    """The op or implementation whose custom calls have this target; None if none in this process has it."""
    return next((op for op in _ops.values() if op.target == target), None)


def ops_of_library(folder: str, namespace: str = NAMESPACE) -> list[CustomOp]:
    """The ops whose handlers are in the library of this folder, the folder's own op first."""
    found = [op for op in _ops.values() if (op.library, op.namespace) == (folder, namespace)]
    return sorted(found, key=lambda op: (op.name.replace(".", "_") != folder, op.name))


def targets_of(name: str) -> set[str]:
    """The targets of an op and all its implementations, or of the implementation `<op>.<name>` alone."""
    try:
        op = find_op(name)
    except DefinitionError:
        op = None
    return {op.target, *(i.target for i in op.implementations.values())} if op else set()


def optional_attributes() -> dict[str, set[str]]:
    """Target -> names of its `int?` and `float?` attributes, for every declared op."""
    return {op.target: {a.name for a in op.schema.attributes if a.kind.endswith("?")} for op in _ops.values()}


class CustomOp(Definition):
    """A definition that is registered with torch; a call does what `torch.ops.<namespace>.<name>` does, a bit faster.

    Attributes:
        overload: the torch op, for torch.library.opcheck.
        implementations: the op's other implementations by name; each is called like the op.
    """

    def __init__(
        self,
        function: Callable,
        mutates: tuple[str, ...],
        library: str | None = None,
        lowering: Callable[[Definition], Any] = Lowering,
        implementation: str | None = None,
        gradient: Info | None = None,
        results: tuple[str, ...] = (),
    ):
        super().__init__(function, mutates, library, implementation, results)
        self.implementations: dict[str, CustomOp] = {}
        self._gradient = gradient or Info(self._no_gradient, None)
        self._lowering = lowering(self)
        if other := find_target(self.target):
            raise DefinitionError(
                mismatch(self.name, "op", "a name that is free", f"one {other.declared_in()}"),
                f"this one is {self.declared_in()}: rename one of the two, or give its package another namespace",
            )
        if self.namespace not in _libraries:
            _libraries[self.namespace] = torch.library.Library(self.namespace, "FRAGMENT")
        self._library = _libraries[self.namespace]
        self._library.define(f"{self.name}{self.schema.text}")
        packet = getattr(getattr(torch.ops, self.namespace), function.__name__)
        self.overload = getattr(packet, implementation or "default")
        # For help(torch.ops.<namespace>.<op>); a packet is one object for all its overloads.
        packet.__doc__ = self.overload.__doc__ = self.__doc__
        self._fast_path = FastPath(self.schema, self._lowering.find_call)
        self._in_place = (
            InPlace(self, self.overload, self.run_reference, self._library, self._lowering.emit, self._fast_path)
            if self.schema.mutated
            else None
        )
        self._register_kernels()
        register_vmap(self, self.overload, self._library)
        _ops[self.qualified_name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self.overload(*args, **kwargs)
        # Skips torch's dispatcher if possible, which costs more than the custom call.
        if self._in_place:
            return self._in_place.call(args, kwargs)
        found = self._fast_path.find(args, kwargs)
        if found is None:
            return self.overload(*args, **kwargs)
        emit, operands = found
        return emit(operands)

    def register_fake(self, fake: Callable) -> Callable:
        """Registers the fake function: it checks the arguments (`pyxla.Check`) and returns empty results, row-major.

        It is the only place where arguments are checked: on CPU, CUDA and XLA tensors and while a graph is traced. On
        XLA it gets tensors without data, once per set of shapes and attributes; on CPU and CUDA tensors it gets these,
        in every call. An op that only works in place returns None.
        """
        self._fake = fake
        torch.library.register_fake(self.qualified_name, fake, lib=self._library)
        if self._in_place:
            self._in_place.register_fake(fake)
        return fake

    def register_autograd(self, backward: Callable, *, setup_context: Callable | None = None) -> None:
        """Registers the gradient, as torch.library.register_autograd does: `backward(ctx, *grads)`.

        Raises:
            DefinitionError: the op works in place.
        """
        if self.schema.mutated:
            raise DefinitionError(
                mismatch(self.name, "gradient", "none, as the op works in place", "register_autograd")
            )
        self._gradient._backward_fn, self._gradient._setup_context_fn = backward, setup_context

    def lower_to(self, implementation: CustomOp) -> None:
        """Makes later calls on XLA tensors use this implementation; `pyxla.use_implementation` calls it."""
        self._lowering.lower_to(implementation)
        self._fast_path.forget()

    def emit(self, *arguments: Any) -> Any:
        """The op's custom call on XLA tensors: all results, operands updated in place first."""
        return self._lowering.emit(*arguments)

    def _register_kernels(self) -> None:
        for key in ("CPU", "CUDA"):
            self._library.impl(self.name, self.run_reference, key)
        if not self._in_place:
            self._library.impl(self.name, self._lowering.emit, "XLA")
            autograd = make_autograd_impl(self.overload, self._gradient)
            find_call = self._fast_path.find

            def autograd_xla(keyset: torch.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
                # Emits a call at once if possible, without the boxed fallbacks below this key.
                found = find_call(args, kwargs)
                if found is None:
                    return autograd(keyset, *args, **kwargs)
                emit, operands = found
                return emit(operands)

            self._library.impl(self.name, autograd, "Autograd", with_keyset=True)
            self._library.impl(self.name, autograd_xla, "AutogradXLA", with_keyset=True)
        if self.schema.device is not None:
            self._library.impl(self.name, self._select_backend, "BackendSelect")

    def _no_gradient(self, ctx: Any, *grads: torch.Tensor) -> None:
        raise DefinitionError(mismatch(self.name, "gradient", "one", "none"), f"add {self.name}.register_autograd")

    def run_reference(self, *args: Any, **kwargs: Any) -> Any:
        """The op on CPU and CUDA tensors: the checks, then the author's function."""
        arguments = self.schema.bind(args, kwargs)
        self._check_one_device(arguments)
        if self._in_place:
            self._in_place.check_targets(arguments)
        self.infer_results(arguments)
        results = self.reference(*arguments)
        # Row-major, as on XLA: torch.compile takes the strides from the fake function.
        if isinstance(results, tuple):
            return tuple(result.contiguous() for result in results)
        return None if results is None else results.contiguous()

    def _check_one_device(self, arguments: tuple) -> None:
        devices = [
            (slot, arguments[slot.index].device) for slot in self.schema.tensors if arguments[slot.index] is not None
        ]
        for slot, device in devices[1:]:
            if device != devices[0][1]:
                expected = f"a tensor on {devices[0][1]}, as {devices[0][0].name} is"
                raise ArgumentError(
                    mismatch(self.name, slot.name, expected, device), f"move it: {slot.name}.to({str(devices[0][1])!r})"
                )

    def _select_backend(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self.schema.bind(args, kwargs)
        device = torch.device(arguments[self.schema.device.index] or "cpu")
        return self._lowering.emit(*arguments) if device.type == "xla" else self.run_reference(*arguments)
