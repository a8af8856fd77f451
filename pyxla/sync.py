"""Waits for the device and turns a handler's error into one Python exception.

XLA keeps a failed execution's error, and torch_xla raises it once more at the next device operation, whatever that is.
"""

from __future__ import annotations

from pyxla.errors import PyxlaError
from pyxla.pjrt import cuda_plugin

# What XLA writes in front of a handler's own words.
_STATUS = ("INVALID_ARGUMENT: ", "INTERNAL: ")


def sync() -> None:
    """Runs what is pending and waits: `torch_xla.sync(wait=True)` whose errors are raised once.

    Raises:
        PyxlaError: a handler, or XLA, returned an error; the message is its own. The process may go on: tensors that
            the failed graph would have computed hold nothing, all others are as they were.
    """
    import torch_xla

    try:
        torch_xla.sync(wait=True)
    except RuntimeError as error:
        drain_errors()
        raise PyxlaError(_without_status(str(error).removeprefix("Bad StatusOr access: ").strip())) from error
    # On CUDA an execution's error is not torch_xla's to raise: pjrt_proxy keeps it.
    text = cuda_plugin.take_error()
    if text is not None:
        drain_errors()
        raise PyxlaError(_without_status(text))


def _without_status(text: str) -> str:
    return text.partition(": ")[2] if text.startswith(_STATUS) else text


def drain_errors() -> None:
    """Takes the errors that torch_xla has kept, so that the next operation does not raise them again.

    For after you caught one that came out of `.cpu()`, `.item()` or a print; `pyxla.sync` does it by itself.
    """
    import torch_xla

    for _ in range(3):
        try:
            torch_xla.sync(wait=True)
        except RuntimeError:
            continue
        break
    cuda_plugin.take_error()
