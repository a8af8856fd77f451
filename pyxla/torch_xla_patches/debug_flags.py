"""XLA reads XLA_FLAGS once, before its first computation; a flag that is set later has no effect.

torch_xla has no function to set one, but exports XLA's parser of the variable, which may be called again.
"""

from __future__ import annotations

import ctypes
import os

from pyxla.errors import PyxlaError, mismatch

# void xla::ParseDebugOptionFlagsFromEnv(bool reset_envvar)
_PARSE = "_ZN3xla28ParseDebugOptionFlagsFromEnvEb"


def set_flags(flags: str) -> None:
    """Sets flags of XLA's debug options in a process in which XLA has already computed. XLA_FLAGS is not changed.

    Raises:
        PyxlaError: torch_xla does not export the parser. The version is not checked: any that exports it works.
    """
    import torch_xla

    try:
        parse = getattr(ctypes.CDLL(torch_xla._XLAC.__file__), _PARSE)
    except AttributeError as error:
        version = torch_xla.__version__
        raise PyxlaError(
            mismatch("hlo", "torch_xla", "2.8.1, whose XLA can be told to dump at any time", version),
            "call pyxla.hlo.dump_to before the first computation",
        ) from error
    kept = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = flags
    try:
        parse(ctypes.c_bool(True))
    finally:
        if kept is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = kept
