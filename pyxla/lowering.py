"""An op's XLA kernel: from the arguments of one call to the custom call in torch_xla's graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pyxla.custom_call import CustomCall, attributes, tensor_type
from pyxla.errors import ArgumentError, DefinitionError, mismatch
from pyxla.registry import ensure_registered
from pyxla.schema import Schema


class Lowering:
    """Emits the op's custom call, one XLA computation per set of shapes, dtypes and attributes.

    Args:
        op: name of the op.
        target: name of the custom call's target.
        schema: schema of the op.
        infer_results: runs the op's checks on tensors without data and returns its results in the same form.
    """

    def __init__(self, op: str, target: str, schema: Schema, infer_results: Callable[[tuple], tuple]):
        self.op = op
        self.target = target
        self._schema = schema
        self._infer_results = infer_results
        self._computations: dict[tuple, Any] = {}
        self._name = f"xla_gpu::{op}"
        self._keys = tuple(_KEYS[a.kind] for a in schema.arguments)
        self._tensor_indices = tuple(a.index for a in schema.tensors)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self._schema.bind(args, kwargs)
        key = tuple([key(value) for key, value in zip(self._keys, arguments, strict=True)])
        computation = self._computations.get(key)
        if computation is None:
            computation = self._computations[key] = self._computation(arguments)
        tensors = [arguments[i] for i in self._tensor_indices if arguments[i] is not None]
        results = _user_computation()(self._name, tensors or [self._unused_operand(arguments)], computation)
        return results[0] if len(results) == 1 else tuple(results)

    def custom_call(self, arguments: tuple) -> CustomCall:
        """The custom call of these arguments, after the op's checks.

        Raises:
            ArgumentError: the op does not take these arguments.
        """
        self._check_devices(arguments)
        results = self._infer_results(tuple(_without_data(value) for value in arguments))
        schema = self._schema
        operands = tuple(
            None if arguments[a.index] is None else tensor_type(self.op, a.name, arguments[a.index])
            for a in schema.tensors
        )
        for result in results:
            if not isinstance(result, torch.Tensor):
                raise DefinitionError(mismatch(self.op, "fake function", "Tensors", type(result).__name__))
        places = {a.name: i for i, a in enumerate(schema.tensors)}
        return CustomCall(
            target=self.target,
            operands=operands,
            results=(
                *(operands[places[a.name]] for a in schema.mutated),
                *(tensor_type(self.op, f"result {i}", result) for i, result in enumerate(results)),
            ),
            attributes=attributes(
                {a.name: a.kind for a in schema.attributes}, [arguments[a.index] for a in schema.attributes]
            ),
            aliases=tuple((i, places[a.name]) for i, a in enumerate(schema.mutated)),
        )

    def _computation(self, arguments: tuple) -> Any:
        call = self.custom_call(arguments)
        ensure_registered(self.op, self.target, _platform())
        return call.computation()

    def _check_devices(self, arguments: tuple) -> None:
        for argument in self._schema.tensors:
            tensor = arguments[argument.index]
            if tensor is not None and tensor.device.type != "xla":
                raise ArgumentError(
                    mismatch(self.op, argument.name, "a tensor on xla, as the others are", tensor.device),
                    f"move it: {argument.name}.to(torch_xla.device())",
                )

    def _unused_operand(self, arguments: tuple) -> torch.Tensor:
        device = arguments[self._schema.device.index]
        return torch.zeros((), dtype=torch.bool, device=device)


def _without_data(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="meta", requires_grad=False)


def _tensor_key(tensor: torch.Tensor | None) -> Any:
    # The device is part of the key so that a CPU tensor among XLA tensors reaches the check.
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device.type)


def _same(value: Any) -> Any:
    return value


def _float_key(value: float | None) -> Any:
    # 0.0 == -0.0, but they are different attributes.
    return value or repr(value)


_KEYS: dict[str, Callable[[Any], Any]] = {
    "Tensor": _tensor_key,
    "Tensor?": _tensor_key,
    "int": _same,
    "int?": _same,
    "bool": _same,
    "str": _same,
    "float": _float_key,
    "float?": _float_key,
    "int[]": tuple,
    "float[]": lambda values: tuple(map(_float_key, values)),
    "Device": _same,
}


def _platform() -> str:
    import torch_xla.runtime

    return "Host" if torch_xla.runtime.device_type() == "CPU" else torch_xla.runtime.device_type()


def _user_computation() -> Callable:
    import torch_xla

    return torch_xla._XLAC._xla_user_computation
