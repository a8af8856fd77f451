"""What is said of code from which no op can be made."""

from __future__ import annotations

from devtool.errors import MISUSED, DevtoolError


def refused(where: str, expected: str, got: object, hint: str) -> DevtoolError:
    """The error about a place in the user's code, `scale.cu:12: launch_scale: eps`."""
    return DevtoolError(f"new-op: --from: {where}: expected {expected}, got {got}", hint, MISUSED)


def schema_refused(expected: str, got: object, hint: str) -> DevtoolError:
    """The error about a SCHEMA that does not fit the code."""
    return DevtoolError(f"new-op: SCHEMA: expected {expected}, got {got}", hint, MISUSED)
