"""An op's XLA kernel: from the arguments of one call to the custom call in torch_xla's graph."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from pyxla.errors import ArgumentError, DefinitionError, mismatch
from pyxla.library.register import ensure_registered
from pyxla.lowering.fast_path import write_emit
from pyxla.lowering.stablehlo import CustomCall, attributes, tensor_type
from pyxla.op.definition import Definition


class Lowering:
    """Emits the op's custom call, one XLA computation per set of shapes, dtypes and attributes.

    Args:
        op: the definition of the op.

    Attributes:
        emit: the function from the op's arguments, XLA tensors, to the results of its custom call.
    """

    def __init__(self, op: Definition):
        self._op = op
        self._schema = op.schema
        calls: dict[tuple, tuple] = {}
        self.emit = write_emit(
            op.name,
            f"xla_gpu::{op.name}",
            op.schema,
            calls=calls,
            first_call=partial(self._first_call, calls),
            await_uploads=await_uploads,
            check_devices=self._check_devices,
            unused_operand=lambda device: torch.zeros((), dtype=torch.bool, device=device),
        )

    def custom_call(self, arguments: tuple) -> CustomCall:
        """The custom call of these arguments, after the op's checks.

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
            workspace=self._op.workspace_bytes(metas, _platform()),
        )

    def _first_call(self, calls: dict, key: tuple, arguments: tuple) -> tuple:
        """What further calls of this key need; kept in `calls`."""
        import torch_xla

        call = self.custom_call(arguments)
        ensure_registered(self._op.library, self._op.target, _platform())
        tensors = [arguments[a.index] for a in self._schema.tensors if arguments[a.index] is not None]
        uploads = _platform() == "Host" and any(map(_copied_in_background, tensors))
        calls[key] = torch_xla._XLAC._xla_user_computation, call.computation(), uploads
        return calls[key]

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


# XLA's CPU client copies what is smaller at once, what is larger in the background.
_BACKGROUND_COPY_BYTES = 64 * 1024
# These cannot be exported, so nobody can wait for them.
_WITHOUT_DLPACK = (torch.float8_e4m3fn, torch.float8_e5m2)


def await_uploads(tensors: list[torch.Tensor]) -> None:
    """Waits for copies to XLA's CPU that still run in the background; computations stay pending, or on their way.

    A computation whose inputs are on their way runs later, on a thread of XLA's, and then a handler's error stays in
    the result's buffer: reading that aborts the process, inside torch_xla. With inputs at hand it is an exception.
    """
    import torch_xla
    import torch_xla.runtime

    if torch_xla.runtime.is_spmd():  # nothing exports a sharded buffer
        return
    large = list(filter(_copied_in_background, tensors))
    to_compute = torch_xla._XLAC._check_tensor_need_materialization(large)
    for tensor, pending in zip(large, to_compute, strict=True):
        # The result of a step that torch_xla still runs has no buffer yet; the next step waits for it.
        if not pending and not torch_xla._XLAC._is_placecholder(tensor):
            # What has a buffer is exported, which waits for it. An export that nobody takes would keep it for ever.
            torch.from_dlpack(torch_xla._XLAC._to_dlpack(tensor))


def _copied_in_background(tensor: torch.Tensor) -> bool:
    return tensor.nbytes > _BACKGROUND_COPY_BYTES and tensor.dtype not in _WITHOUT_DLPACK


@cache
def _platform() -> str:
    import torch_xla.runtime

    return "Host" if torch_xla.runtime.device_type() == "CPU" else torch_xla.runtime.device_type()
