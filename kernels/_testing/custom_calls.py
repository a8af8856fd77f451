"""For the tests of ops: moves arguments to the device, and calls a handler without the op's checks in Python."""

from collections.abc import Iterable

import torch

from pyxla import CustomOp, sync
from pyxla.lowering.stablehlo import CustomCall, attributes, tensor_type


def to_xla(arguments: dict) -> dict:
    """The arguments on the device, after their transfers. Only if its operands have arrived is a handler's error raised
    when the graph runs; otherwise the error stays in the result, and reading the result ends the process."""
    import torch_xla

    moved = {n: v.to(torch_xla.device()) if torch.is_tensor(v) else v for n, v in arguments.items()}
    for v in moved.values():
        if torch.is_tensor(v):
            v.cpu()
    return moved


def call_handler(op: CustomOp, arguments: dict, more_results: Iterable[str] = ()) -> None:
    """Runs a custom call of the op as another program may build it, without a workspace, and discards the result.

    Args:
        arguments: on the device, as `to_xla` returns them.
        more_results: MLIR types of the results after the first one, which has the first tensor's type.
    """
    import torch_xla

    slots, operands = op.schema.attributes, [arguments[s.name] for s in op.schema.tensors]
    types = tuple(None if t is None else tensor_type(op.name, "", t) for t in operands)
    call = CustomCall(
        target=op.target,
        operands=types,
        results=(types[0], *more_results),
        attributes=attributes({s.name: s.kind for s in slots}, [arguments[s.name] for s in slots]),
        workspace=0,
    )
    present = [t for t in operands if t is not None]
    result = torch_xla._XLAC._xla_user_computation("xla_gpu::test", present, call.computation())
    sync()
    del result  # kept until here, because XLA skips a result that nobody holds
