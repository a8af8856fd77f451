"""The calls that need only their custom call, stored under a key that is quick to compute.

torch's dispatcher converts and refuses arguments, traces, transforms and differentiates, and costs more than the custom
call. If it would only pass the call on, `FastPath.find` returns a function, with which the caller emits it at once.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._C import (
    _are_functorch_transforms_active,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    is_grad_enabled,
)
from torch.nn import Parameter

from pyxla.op.schema import Schema

_SCALARS = frozenset({int, bool, str, type(None)})
_PLAIN_TYPES = {"Tensor": (Tensor, Parameter), "float": (float, int), "bool": (bool,), "str": (str,)}


# Emits a call: takes the tensors that are present, in the schema's order, and returns the results.
Emit = Callable[[list[Tensor]], Any]


class FastPath:
    """The calls of one op that torch's dispatcher would only pass on.

    Args:
        schema: schema of the op.
        find_call: takes all arguments of a call, in order, and returns the function that emits every call with the
            same shapes, dtypes and attributes.
    """

    def __init__(self, schema: Schema, find_call: Callable[[tuple], Emit]):
        self._schema, self._find_call = schema, find_call
        self._calls: dict[tuple, Emit] = {}
        os.register_at_fork(after_in_child=self.forget)  # the child may not call XLA: find_call says so

    def find(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Emit, list[Tensor]] | None:
        """The function that emits the call, and its operands; None if the call must go through torch's dispatcher.

        This runs for every call, so one pass builds the key: shape and dtype of a tensor, type and value of a scalar,
        then the keywords. `_first_call` checks types and values before it stores a key, so a known key needs no checks.
        """
        if _len_torch_dispatch_stack() or _len_torch_function_stack() or _are_functorch_transforms_active():
            return None
        key: list[Any] = []
        operands: list[Tensor] = []
        for value in (*args, *kwargs.values()) if kwargs else args:
            kind = type(value)
            if kind is Tensor or kind is Parameter:  # other subclasses may trace or wrap
                if not value.is_xla or (value.requires_grad and is_grad_enabled()):
                    return None
                operands.append(value)
                key.append(value.shape)
                key.append(value.dtype)
            elif kind is float:
                # 0.0 == -0.0, but they are different attributes. A NaN equals nothing: each call would add a key.
                key.append(value if value and value == value else repr(value))
            elif kind in _SCALARS:
                key.append(kind)  # 1 == True
                key.append(value)
            elif kind is list:
                key.append(tuple(map(_item_key, value)))
            else:
                return None
        if kwargs:
            key.append(dict)
            key.extend(kwargs)
        whole = tuple(key)
        calls = self._calls
        emit = calls.get(whole)
        if emit is None:
            emit = self._first_call(args, kwargs, operands)
            if emit is None:
                return None
            calls[whole] = emit
        return emit, operands

    def forget(self) -> None:
        """Forgets all calls; one that is being looked up meanwhile goes to the table that it began with."""
        self._calls = {}

    def _first_call(self, args: tuple, kwargs: dict[str, Any], operands: list[Tensor]) -> Emit | None:
        if not self._schema.accepts(args, kwargs):
            return None
        arguments = self._schema.bind(args, kwargs)
        if not all(_is_plain(slot.kind, value) for slot, value in zip(self._schema.arguments, arguments, strict=True)):
            return None
        in_order = [arguments[slot.index] for slot in self._schema.tensors if arguments[slot.index] is not None]
        if not all(map(operator.is_, operands, in_order)):  # keywords in another order than the schema's
            return None
        return self._find_call(arguments)


def _item_key(item: Any) -> Any:
    """The key of an item of a list; None for an item that `_is_plain` refuses."""
    kind = type(item)
    return item if kind is int else repr(item) if kind is float else None


def _is_plain(kind: str, value: Any) -> bool:
    """Whether the value becomes an operand or attribute unchanged.

    torch converts or refuses all other values: here 2.7 would become the int 2, and 2**64 another int.
    """
    if kind.endswith("?"):
        return value is None or _is_plain(kind[:-1], value)
    if kind.endswith("[]"):
        return type(value) is list and all(_is_plain(kind[:-2], item) for item in value)
    if kind == "int":
        return type(value) is int and -(2**63) <= value < 2**63
    return type(value) in _PLAIN_TYPES.get(kind, ())
