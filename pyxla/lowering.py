"""An op's XLA kernel: from the arguments of one call to the custom call in torch_xla's graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
        self._pack = _packer(schema)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key, operands = self._pack(*args, **kwargs)
        computation = self._computations.get(key)
        if computation is None:
            computation = self._computations[key] = self._computation(self._schema.bind(args, kwargs))
        if _platform() == "Host":
            await_uploads(operands)
        try:
            results = _user_computation(self._name, operands or [self._unused_operand(args, kwargs)], computation)
        except RuntimeError:
            # The key leaves devices out: it is XLA that refuses a CPU tensor in a call that it has seen before.
            self._check_devices(self._schema.bind(args, kwargs))
            raise
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

    def _unused_operand(self, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
        device = self._schema.bind(args, kwargs)[self._schema.device.index]
        return torch.zeros((), dtype=torch.bool, device=device)


def _without_data(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


# What an argument adds to the key of a computation. 0.0 == -0.0, but they are different attributes; so is a NaN.
_KEYS = {
    "Tensor": "{0}.shape, {0}.dtype",
    "Tensor?": "{0} is not None and ({0}.shape, {0}.dtype)",
    "float": "{0} or repr({0})",
    "float?": "{0} or repr({0})",
    "int[]": "tuple({0})",
    "float[]": "tuple(map(repr, {0}))",
}


def _packer(schema: Schema) -> Callable[..., tuple[tuple, list[torch.Tensor]]]:
    """Compiles the function from an op's arguments to (key, operands): written out per op, as it runs on every call."""
    names = [a.name for a in schema.arguments]
    parameters = [f"{n}=_default_{n}" if n in schema.defaults else n for n in names]
    key = "".join(_KEYS.get(a.kind, "{0}").format(a.name) + ", " for a in schema.arguments)
    operands = f"[{', '.join(a.name for a in schema.tensors)}]"
    if any(a.kind == "Tensor?" for a in schema.tensors):
        operands = f"[t for t in {operands} if t is not None]"
    return eval(
        f"lambda {', '.join(parameters)}: (({key}), {operands})",
        {f"_default_{n}": v for n, v in schema.defaults.items()},
    )


# XLA's CPU client copies what is smaller at once, what is larger in the background.
_BACKGROUND_COPY_BYTES = 64 * 1024
# These cannot be exported, so nobody can wait for them.
_WITHOUT_DLPACK = (torch.float8_e4m3fn, torch.float8_e5m2)


def await_uploads(tensors: list[torch.Tensor]) -> None:
    """Waits for copies to XLA's CPU that still run in the background; pending computations stay pending.

    A computation whose inputs are on their way runs later, on a thread of XLA's, and then a handler's error stays in
    the result's buffer: reading that aborts the process, inside torch_xla. With inputs at hand it is an exception.
    """
    large = [t for t in tensors if t.nbytes > _BACKGROUND_COPY_BYTES and t.dtype not in _WITHOUT_DLPACK]
    if large:
        import torch_xla

        to_compute = torch_xla._XLAC._check_tensor_need_materialization(large)
        for tensor, pending in zip(large, to_compute, strict=True):
            if not pending:
                # What has a buffer is exported, which waits for it, and the export is dropped.
                torch_xla._XLAC._to_dlpack(tensor)


@cache
def _platform() -> str:
    import torch_xla.runtime

    return "Host" if torch_xla.runtime.device_type() == "CPU" else torch_xla.runtime.device_type()


def _user_computation(*arguments: Any) -> list[torch.Tensor]:
    # Replaces itself: torch_xla may still be on its way in when this module is imported (pyxla.autoload).
    global _user_computation
    import torch_xla

    _user_computation = torch_xla._XLAC._xla_user_computation
    return _user_computation(*arguments)
