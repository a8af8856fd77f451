"""XLA's error for a handler that binds other arguments than the call has, which names neither the op nor the side."""

from __future__ import annotations

import re

from pyxla.errors import PyxlaError, mismatch
from pyxla.torch_ops.custom_op import CustomOp

# Texts of XLA's FFI headers (xla/ffi/api/api.h).
_DECODING = re.compile(r"Failed to decode all FFI handler operands[^\n]*(?:\nDiagnostics:\n)?(.*)", re.DOTALL)
_COUNT = re.compile(r"Wrong number of (?:arguments|results|attributes): .*")
_NAMES = re.compile(r"Attribute name mismatch: (\w+) vs (\w+)")


def handler_error(op: CustomOp, text: str) -> PyxlaError:
    """The error of a handler of the op; one of its binding with the op's name and what differs.

    Args:
        op: the op.
        text: the handler's message, or torch_xla's text around it.
    """
    return binding_error(op, text) or PyxlaError(text)


def binding_error(op: CustomOp, text: str) -> PyxlaError | None:
    """The error, if the text says that the handler's binding does not fit the call; None for any other text."""
    if found := _DECODING.search(text):
        got = found[1].strip().replace("\n", "; ") or found[0]
    elif found := _COUNT.search(text):
        got = found[0]
    else:
        return None
    if names := _NAMES.search(got):
        got = f"attribute {names[2]} where the schema has {names[1]}"
    message = mismatch(op.name, "handler", "a binding of the arguments and results in the schema", got)
    return PyxlaError(message, f".Arg, .Ret and .Attr in {op.library}_ffi.cc are to follow {op.schema.text}")
