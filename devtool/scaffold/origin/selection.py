"""Which function of a file is meant: the one that --symbol names, or the only candidate."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from devtool.errors import MISUSED, DevtoolError
from devtool.scaffold.origin.refusals import refused


def select(path: Path, what: str, known: Iterable[str], candidates: Sequence[str], symbols: Sequence[str]) -> str:
    """The name of the function to take.

    Args:
        what: "kernel" or the like, for messages.
        known: every name that --symbol may give.
        candidates: those to take without it.

    Raises:
        DevtoolError: --symbol names none, or is needed.
    """
    known = list(known)
    if len(symbols) > 1:
        raise DevtoolError(
            f"new-op: --symbol: expected one name with --from, got {', '.join(symbols)}",
            "an op has one launch",
            MISUSED,
        )
    if symbols:
        (symbol,) = symbols
        if symbol not in known:
            near = difflib.get_close_matches(symbol, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"{path} has {', '.join(known)}"
            raise DevtoolError(f"new-op: --symbol: expected a {what} of {path}, got {symbol}", hint, MISUSED)
        return symbol
    if len(candidates) != 1:
        names = ", ".join(candidates or known)
        raise refused(str(path), f"one {what}", names, f"choose one: --symbol {(candidates or known)[0]}")
    return candidates[0]
