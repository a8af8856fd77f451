"""For the tests of ops: arguments on the device, and calls of a handler that pass by the op's checks in Python."""

from collections.abc import Iterable

import torch

from pyxla import CustomOp, sync
from pyxla.lowering.stablehlo import CustomCall, attributes, tensor_type


def to_xla(arguments: dict) -> dict:
    """The arguments on the device, arrived there: a handler's error is raised when the graph runs only if its operands
    are there by then; else it stays in the result, and reading that ends the process."""
    import torch_xla

    moved = {n: v.to(torch_xla.device()) if torch.is_tensor(v) else v for n, v in arguments.items()}
    for v in moved.values():
        if torch.is_tensor(v):
            v.cpu()
    return moved


def call_handler(op: CustomOp, arguments: dict, more_results: Iterable[str] = ()) -> None:
    """Runs a custom call of the op as some other program may build it, without a workspace; its result is thrown away.

    Args:
        arguments: on the device, as `to_xla` gives them.
        more_results: types in MLIR of the results behind the first one, which is as the first tensor.
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
    del result  # XLA leaves out what nobody holds
