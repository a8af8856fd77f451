"""Lowers an op on XLA tensors: turns the arguments of one call into the custom call in torch_xla's graph."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from pyxla.errors import ArgumentError, DefinitionError, mismatch
from pyxla.library.register import ensure_registered
from pyxla.lowering.cache_key import cache_key
from pyxla.lowering.stablehlo import CustomCall, attributes, tensor_type
from pyxla.lowering.uploads import await_uploads, copied_in_background
from pyxla.op.definition import Definition
from pyxla.pjrt.platform import platform
from pyxla.torch_xla_patches.forked_child import check_not_forked


class Lowering:
    """Emits the op's custom call, one XLA computation per set of shapes, dtypes and attributes.

    Args:
        op: the definition of the op.
    """

    def __init__(self, op: Definition):
        self._op = op
        self._schema = op.schema
        self._lock = threading.Lock()
        self._calls: dict[tuple, Callable[[list[torch.Tensor]], Any]] = {}
        os.register_at_fork(after_in_child=self._begin_in_child)

    def emit(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the op's custom call on XLA tensors: a tuple, or the only result."""
        arguments = self._schema.bind(args, kwargs)
        operands = [arguments[a.index] for a in self._schema.tensors if arguments[a.index] is not None]
        if self._schema.device is not None and not operands:
            # torch_xla takes the device from a computation's first input, so there must be one.
            operands = [torch.zeros((), dtype=torch.bool, device=arguments[self._schema.device.index])]
        return self.find_call(arguments)(operands)

    def find_call(self, arguments: tuple) -> Callable[[list[torch.Tensor]], Any]:
        """The function that emits the custom call for these arguments; it takes the tensors that are present.

        Raises:
            ArgumentError: the op does not take these arguments.
            PyxlaError: this process is a fork of one that had started XLA.
        """
        key, calls = cache_key(arguments), self._calls
        if key not in calls:
            check_not_forked(self._op.name)
            with self._lock:
                calls[key] = self._first_call(arguments)
        return calls[key]

    def lower_to(self, implementation: Definition) -> None:
        """Makes later calls use this implementation: its target, library, checks and workspace."""
        with self._lock:
            self._op = implementation
        # The keys do not contain the implementation. A call that is being made goes to the table that it began with.
        self._calls = {}

    def custom_call(self, arguments: tuple) -> CustomCall:
        """The custom call for these arguments, after the op's checks.

        Raises:
            ArgumentError: the op does not take these arguments.
        """
        self._check_devices(arguments)
        metas = tuple(_without_data(value) for value in arguments)
        results = self._op.infer_results(metas)
        schema = self._schema
        operands = tuple(
            None if arguments[a.index] is None else tensor_type(self._op.name, a.name, arguments[a.index])
            for a in schema.tensors
        )
        for result in results:
            if not isinstance(result, torch.Tensor):
                raise DefinitionError(mismatch(self._op.name, "fake function", "Tensors", type(result).__name__))
        places = {a.name: i for i, a in enumerate(schema.tensors)}
        return CustomCall(
            target=self._op.target,
            operands=operands,
            results=(
                *(operands[places[a.name]] for a in schema.mutated),
                *(tensor_type(self._op.name, f"result {i}", result) for i, result in enumerate(results)),
            ),
            attributes=attributes(
                {a.name: a.kind for a in schema.attributes}, [arguments[a.index] for a in schema.attributes]
            ),
            aliases=tuple((i, places[a.name]) for i, a in enumerate(schema.mutated)),
            workspace=self._op.workspace_bytes(metas, platform()),
        )

    def _first_call(self, arguments: tuple) -> Callable[[list[torch.Tensor]], Any]:
        from torch_xla import _XLAC

        call = self.custom_call(arguments)
        ensure_registered(self._op.library, self._op.target, platform(), namespace=self._op.namespace)
        label, computation = self._op.qualified_name, call.computation()
        single = self._schema.result_count == 1
        tensors = [arguments[a.index] for a in self._schema.tensors if arguments[a.index] is not None]
        uploads = platform() == "Host" and any(map(copied_in_background, tensors))
        user_computation = _XLAC._xla_user_computation

        def emit(operands: list[torch.Tensor]) -> Any:
            if uploads:
                await_uploads(operands)
            results = user_computation(label, operands, computation)
            return results[0] if single else tuple(results)

        return emit

    def _begin_in_child(self) -> None:
        # Each call is checked again, which may refuse it; another thread may have held the lock.
        self._calls, self._lock = {}, threading.Lock()

    def _check_devices(self, arguments: tuple) -> None:
        for argument in self._schema.tensors:
            tensor = arguments[argument.index]
            if tensor is not None and tensor.device.type != "xla":
                raise ArgumentError(
                    mismatch(self._op.name, argument.name, "a tensor on xla, as the others are", tensor.device),
                    f"move it: {argument.name}.to(torch_xla.device())",
                )


def _without_data(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="meta")
