"""Waits for the device and turns a handler's error into one Python exception.

XLA keeps a failed execution's error, and torch_xla raises it once more at the next device operation, whatever that is.
"""

from __future__ import annotations

from pyxla.errors import PyxlaError


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
        text = str(error).removeprefix("Bad StatusOr access: ").strip()
        raise PyxlaError(text.partition(": ")[2] if text.startswith(_STATUS) else text) from error


_STATUS = ("INVALID_ARGUMENT: ", "INTERNAL: ")


def drain_errors() -> None:
    """Takes the errors that torch_xla has kept, so that the next operation does not raise them again."""
    import torch_xla

    for _ in range(3):
        try:
            torch_xla.sync(wait=True)
        except RuntimeError:
            continue
        return
