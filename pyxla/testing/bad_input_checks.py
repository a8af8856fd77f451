"""The checks of arguments that an op must refuse: in Python on every device, and in its handler."""

from __future__ import annotations

from typing import Any

import torch

from pyxla.errors import PyxlaError
from pyxla.op.arguments import no_checks
from pyxla.pjrt.platform import device_type, platform_of
from pyxla.sync import drain_errors
from pyxla.testing.case import BadInput, cases_of
from pyxla.testing.device_memory import call_raw
from pyxla.testing.direct_call import in_order, without_data
from pyxla.testing.op_checks import move_to_xla
from pyxla.torch_ops.custom_op import CustomOp


def check_bad_input(op: CustomOp, bad: BadInput) -> None:
    """The op refuses the arguments on CPU and on XLA tensors with one message, its handler refuses them too, and the
    process goes on.

    What only the data shows a CUDA handler cannot refuse: there the call must end, and a test of the op's own says how.
    """
    for place in ("cpu", "xla"):
        _check_op_refuses(op, bad, place)
    platform = platform_of(device_type())
    if not (bad.at_run_time and platform == "CUDA"):
        _check_handler_refuses(op, bad, platform)
    one = torch.ones(2, device="xla") + 1
    assert one.cpu().tolist() == [2.0, 2.0]


def _check_op_refuses(op: CustomOp, bad: BadInput, place: str) -> None:
    arguments = bad.arguments() if place == "cpu" else move_to_xla(bad.arguments())
    try:
        results = op(**arguments)
        if place == "xla":
            import torch_xla

            torch_xla.sync(wait=True)  # `results` is held: XLA skips what nobody holds
    except Exception as error:
        assert bad.message in str(error), f"{op.name}: expected {bad.message!r} on {place}, got {error}"
        assert bad.at_run_time or isinstance(error, PyxlaError), (
            f"expected a PyxlaError before XLA sees the graph, got {error!r}"
        )
    else:
        may_pass = place == "xla" and bad.at_run_time and device_type() == "CUDA"
        assert may_pass, f"{op.name}: expected {bad.message!r} on {place}, got no error"
        del results
    finally:
        drain_errors()


def _check_handler_refuses(op: CustomOp, bad: BadInput, platform: str) -> None:
    """A raw call with these arguments, as another program may make it, is an error of the handler's checks."""
    handler = f"{op.name}: the handler for {platform}"
    arguments = bad.arguments()
    results = bad.results if bad.results is not None else _result_types(op, arguments)
    try:
        call_raw(op, arguments, platform, results=results)
    except PyxlaError as error:
        assert not bad.only_python, f"{handler}: expected no error for a BadInput(only_python=True), got {error}"
        argument = bad.message.partition(": expected ")[0]
        assert str(error).startswith(f"{argument}: "), f"{handler}: expected an error on {argument}, got {error}"
    else:
        assert bad.only_python, f"{handler}: expected {bad.message!r}, got no error: it lacks this check"


def _result_types(op: CustomOp, arguments: dict[str, Any]) -> list[tuple[torch.Size, torch.dtype]]:
    """Shapes and dtypes of the results: as the fake function computes them without its checks; if it fails, as for a
    good call, because the handler must refuse the operands whatever its results are.
    """
    with no_checks():
        try:
            results = op.infer_results(without_data(in_order(op, arguments)))
        except Exception:
            results = op.infer_results(without_data(in_order(op, cases_of(op)[0].arguments())))
    return [(result.shape, result.dtype) for result in results]
