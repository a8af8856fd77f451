"""Errors of pyxla, all in one form: `op: argument: expected X, got Y`, then a hint.

The C++ handlers use the same form (pyxla/include/pyxla/ffi/checks.h), and so does the command line.
"""

from __future__ import annotations

import re
import warnings


class PyxlaError(RuntimeError):
    """An error with a message in this form and, if there is one, a hint.

    Args:
        message: `op: argument: expected X, got Y`.
        hint: what to do or the command to run; shown on its own line.
    """

    def __init__(self, message: str, hint: str | None = None):
        self.message = message
        self.hint = hint
        super().__init__(f"{message}\n\nhint: {hint}" if hint else message)

    def __reduce__(self):
        return type(self), (self.message, self.hint)


class ArgumentError(PyxlaError, ValueError):
    """A caller passed an op an argument that it does not take."""


class DefinitionError(PyxlaError):
    """An author declared an op that cannot become a custom call."""


class LibraryError(PyxlaError):
    """A custom-call library is missing, cannot be loaded, or does not match the op, the sources or the machine."""


class VersionError(LibraryError):
    """A custom-call library is whole, but too old or too new for this pyxla."""


class ArtifactError(PyxlaError):
    """An exported function cannot be read, written, or run here."""


def mismatch(where: str, argument: str, expected: object, got: object) -> str:
    """The message of an error: `where: argument: expected X, got Y`."""
    return f"{where}: {argument}: expected {expected}, got {got}"


def warn(message: str) -> None:
    """Warns about something of which the rest works without it; a warning also where warnings are errors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=re.escape(message))
        warnings.warn(message, stacklevel=3)
