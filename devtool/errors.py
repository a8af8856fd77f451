"""Errors of the command line, in the form that pyxla and the C++ handlers use too."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

import click

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


class DevtoolError(click.ClickException):
    """The text is `where: argument: expected X, got Y`, or what the system did; a blank line; `hint: what to do`.

    Args:
        message: the first line; more lines may show the place of a mistake.
        hint: the fix, or the command that fixes it.
        exit_code: FAILED, or MISUSED where the command line itself is wrong.
    """

    def __init__(self, message: str, hint: str, exit_code: int = FAILED):
        super().__init__(f"{message}\n\nhint: {hint}")
        self.exit_code = exit_code

    def show(self, file=None) -> None:
        """Prints the error on stderr."""
        click.echo(self.message, err=True)


def unknown(where: str, argument: str, what: str, got: str, known: Iterable[str], otherwise: str) -> DevtoolError:
    """The error for a name that is not among the known ones; its hint is the nearest name, or `otherwise`."""
    known = list(known)
    near = difflib.get_close_matches(got, known, n=1)
    message = f"{where}: {argument}: expected {what} ({', '.join(known) or 'there is none'}), got {got}"
    return DevtoolError(message, f"did you mean {near[0]}?" if near else otherwise, MISUSED)


def error_from(where: str, error: OSError) -> DevtoolError:
    """The error for a failed system call, most often because of a full disk or a read-only folder."""
    got = f"{error.strerror}: {error.filename or 'no file named'}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DevtoolError(f"{where}: the disk is full ({got})", "free some space, then try again")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        hint = "make it writable, or copy the tree elsewhere"
        return DevtoolError(f"{where}: the folder is read-only ({got})", hint)
    return DevtoolError(f"{where}: a file cannot be read or written ({got})", "check the file named above")
