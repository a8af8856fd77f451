"""Waits for the device and turns a handler's error into one Python exception.

XLA keeps the error of a failed execution, and torch_xla raises it again at the next device operation, whatever it is.
"""

from __future__ import annotations

from pyxla.errors import PyxlaError
from pyxla.pjrt import proxy
from pyxla.torch_xla_patches.forked_child import check_not_forked

# XLA puts these before a handler's message.
_STATUS = ("INVALID_ARGUMENT: ", "INTERNAL: ")


def sync() -> None:
    """Runs what is pending and waits, as `torch_xla.sync(wait=True)` does, but raises each error only once.

    Raises:
        PyxlaError: a handler or XLA returned an error, with its message. The process may continue: tensors that the
            failed graph should have computed have no data, all others are unchanged. Or this process is a fork of one
            that had started XLA.
    """
    import torch_xla

    check_not_forked("sync")
    try:
        torch_xla.sync(wait=True)
    except RuntimeError as error:
        drain_errors()
        raise PyxlaError(_without_status(str(error).removeprefix("Bad StatusOr access: ").strip())) from error
    # On CUDA torch_xla does not raise an execution's error: pjrt_proxy keeps it.
    text = proxy.take_error()
    if text is not None:
        drain_errors()
        raise PyxlaError(_without_status(text))


def _without_status(text: str) -> str:
    return text.partition(": ")[2] if text.startswith(_STATUS) else text


def drain_errors() -> None:
    """Discards the errors that torch_xla has kept, so that the next operation does not raise them again.

    Call it after you have caught an error from `.cpu()`, `.item()` or a print; `pyxla.sync` does so itself.

    Raises:
        PyxlaError: this process is a fork of one that had started XLA.
    """
    import torch_xla

    check_not_forked("drain_errors")
    for _ in range(3):
        try:
            torch_xla.sync(wait=True)
        except RuntimeError:
            continue
        break
    proxy.take_error()
