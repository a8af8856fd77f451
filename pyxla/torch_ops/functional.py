"""Mutating ops on XLA: a functional twin returns the new values, which are copied back into the arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._library.autograd import Info, make_autograd_impl

from pyxla.errors import ArgumentError, DefinitionError, mismatch
from pyxla.lowering.fast_path import FastPath
from pyxla.op.definition import Definition
from pyxla.torch_xla_patches import traced_graph


class InPlace:
    """Registers a mutating op's functional twin and the copy-back.

    torch_xla's tensors are functional: an update makes a new tensor that takes the old one's place. So there is a
    second op, `<name>_functional`, which returns the new values and is lowered to the custom call.

    Args:
        op: the definition of the op.
        overload: the torch op.
        reference: the op on CPU and CUDA tensors, with its checks.
        library: the torch.library.Library in which the op is defined.
        emit: takes the op's arguments and returns the results of its custom call, new values first.
        fast_path: the calls of the op that need nothing from torch's dispatcher.
    """

    def __init__(
        self,
        op: Definition,
        overload: Any,
        reference: Callable,
        library: torch.library.Library,
        emit: Callable,
        fast_path: FastPath,
    ):
        self._op, self._schema, self._library, self._fast_path = op, op.schema, library, fast_path
        self._overload, self._run_reference = overload, reference
        self._name = op.schema.functional_name(op.name)
        library.define(f"{self._name}{op.schema.functional_text()}")
        packet, _, implementation = self._name.partition(".")
        self._functional = getattr(getattr(getattr(torch.ops, library.ns), packet), implementation or "default")
        for key in ("CPU", "CUDA"):
            library.impl(self._name, self._reference, key)
        library.impl(self._name, emit, "XLA")
        autograd = make_autograd_impl(self._functional, Info(self._no_gradient, None))
        library.impl(self._name, autograd, "AutogradXLA", with_keyset=True)
        for key in ("Functionalize", "XLA"):
            library.impl(op.name, self._update, key)
        library.impl(op.name, self._update_on_autograd, "AutogradXLA", with_keyset=True)

    def call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Calls the op, without torch's dispatcher if that has nothing to do."""
        found = self._fast_path.find(args, kwargs)
        if found is None:
            return self._overload(*args, **kwargs)
        return self._assign(self._schema.bind(args, kwargs), partial(*found))

    def register_fake(self, fake: Callable) -> None:
        """Registers the functional twin's fake function, made from the op's.

        Args:
            fake: the op's fake function.
        """

        def functional_fake(*args: Any, **kwargs: Any) -> Any:
            arguments = self._schema.bind(args, kwargs)
            results = _as_tuple(fake(*arguments))
            return _one_or_all((*(torch.empty_like(arguments[slot.index]) for slot in self._schema.mutated), *results))

        torch.library.register_fake(f"{self._library.ns}::{self._name}", functional_fake, lib=self._library)

    def check_targets(self, arguments: tuple) -> None:
        """Raises ArgumentError if one tensor is to be updated twice.

        The reference would update it twice; on XLA the second update would replace the first.
        """
        for first, second in itertools.combinations(self._schema.mutated, 2):
            if arguments[first.index] is arguments[second.index]:
                expected = f"another tensor than {first.name}, as both are updated in place"
                raise ArgumentError(mismatch(self._op.name, second.name, expected, "the same"), "pass a copy of it")

    def _update(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self._schema.bind(args, kwargs)
        return self._assign(arguments, partial(self._functional, *arguments))

    def _update_on_autograd(self, keyset: torch.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        arguments = self._schema.bind(args, kwargs)
        found = self._fast_path.find(arguments, {})
        if found is not None:
            return self._assign(arguments, partial(*found))
        tensors = [arguments[slot.index] for slot in self._schema.tensors]
        if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
            # Above autograd: the functional op and the assignments to the arguments become part of the graph.
            return self._assign(arguments, partial(self._functional, *arguments))
        return self._overload.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

    def _assign(self, arguments: tuple, functional: Callable[[], Any]) -> Any:
        """Gives each mutated argument its new value, which `functional` returns before the other results."""
        self.check_targets(arguments)
        targets = [arguments[slot.index] for slot in self._schema.mutated]
        compiling = torch._guards.TracingContext.try_get() is not None
        if compiling or traced_graph.is_traced():
            for target in targets:
                traced_graph.donate(target)
        outputs = _as_tuple(functional())
        for target, output in zip(targets, outputs, strict=False):
            if compiling and torch._is_functional_tensor(target):
                # Like copy_, but without aten.copy in the graph, which torch_xla lowers wrongly on several devices.
                torch._functionalize_replace(target, torch._from_functional_tensor(output))
                torch._functionalize_commit_update(target)
                torch._functionalize_sync(target)
            else:
                target.copy_(output)
        results = outputs[len(targets) :]
        return _one_or_all(results) if results else None

    def _reference(self, *args: Any, **kwargs: Any) -> Any:
        arguments = list(self._schema.bind(args, kwargs))
        for slot in self._schema.mutated:
            arguments[slot.index] = arguments[slot.index].clone()
        results = _as_tuple(self._run_reference(*arguments))
        return _one_or_all((*(arguments[slot.index] for slot in self._schema.mutated), *results))

    def _no_gradient(self, ctx: Any, *grads: torch.Tensor) -> None:
        raise DefinitionError(
            mismatch(self._op.name, "gradient", "none, as the op works in place", "a backward pass through it"),
            "torch.no_grad() around what is not trained, or an op that returns what this one updates",
        )


def _as_tuple(results: Any) -> tuple:
    return tuple(results) if isinstance(results, (tuple, list)) else () if results is None else (results,)


def _one_or_all(results: tuple) -> Any:
    return results[0] if len(results) == 1 else results
