"""Reads what `--from` names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from devtool.errors import MISUSED, DevtoolError
from devtool.scaffold.origin.cuda_launch import read_launch
from devtool.scaffold.origin.origin import Origin
from devtool.scaffold.origin.python_function import find_module, read_function
from devtool.scaffold.origin.triton_kernel import read_kernel
from devtool.scaffold.schema import Schema

_CUDA = (".cu", ".cuh")
# What reads the code -> the route that it fixes.
_ROUTES = {"cuda": "cuda", "triton": "triton", "function": None}


def form_of(what: str) -> str:
    """cuda, triton or function: what --from names.

    Raises:
        DevtoolError: it is none of them.
    """
    source, colon, function = what.rpartition(":")
    if colon and function.isidentifier() and source:
        if source.endswith(_CUDA):
            hint = f"--from {source} --symbol {function}"
            raise DevtoolError(f"new-op: --from: expected a CUDA file without a function, got {what}", hint, MISUSED)
        return "function"
    if what.endswith(_CUDA):
        return "cuda"
    if what.endswith(".py"):
        return "triton"
    hint = "--from scale.cu, --from softmax.py (a Triton kernel) or --from layers.norm:rms_norm"
    message = f"new-op: --from: expected FILE.cu, FILE.cuh, FILE.py or MODULE:FUNCTION, got {what}"
    raise DevtoolError(message, hint, MISUSED)


def route_of(what: str, route: str | None) -> str:
    """The route of the new op; `route` is the user's, or None.

    Raises:
        DevtoolError: the code has another one.
    """
    form = form_of(what)
    fixed = _ROUTES[form]
    if fixed and route not in (None, fixed):
        hint = f"leave --route out: the code of {what} is the route {fixed}"
        raise DevtoolError(f"new-op: --route: expected {fixed} with --from {what}, got {route}", hint, MISUSED)
    return fixed or route or "cuda"


def read_origin(what: str, op: str, symbols: Sequence[str], schema: Schema | None) -> Origin:
    """Reads the code that --from names.

    Args:
        what: the user's word.
        op: the name of the op.
        symbols: --symbol.
        schema: the user's, which wins.

    Raises:
        DevtoolError: it cannot be read, or cannot become an op.
    """
    form = form_of(what)
    if form == "function":
        source, _, function = what.rpartition(":")
        path = Path(source) if source.endswith(".py") else find_module(source)
        return read_function(_existing(path), function, op, schema)
    path = _existing(Path(what))
    return read_launch(path, symbols, op, schema) if form == "cuda" else read_kernel(path, symbols, schema)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DevtoolError(f"new-op: --from: expected a file, got none at {path}", "correct the path", MISUSED)
    # Short in messages.
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
