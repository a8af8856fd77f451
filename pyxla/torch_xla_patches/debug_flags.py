"""XLA reads XLA_FLAGS once, before its first computation; a flag that is set later has no effect.

torch_xla has no function to set one, but contains XLA's parser of the variable, which may be called again: in 2.8 the
whole parser, in 2.9 the function that it consists of, which takes the list of flags as an argument.
"""

from __future__ import annotations

import ctypes
import os

from pyxla.errors import PyxlaError
from pyxla.torch_xla_patches import release, symbols

# void xla::ParseDebugOptionFlagsFromEnv(bool reset_envvar)
_PARSE = "_ZN3xla28ParseDebugOptionFlagsFromEnvEb"
# void xla::ParseFlagsFromEnvAndDieIfUnknown(std::string_view envvar, const std::vector<tsl::Flag>&, bool reset_envvar)
_PARSE_LIST = (
    "_ZN3xla32ParseFlagsFromEnvAndDieIfUnknown"
    "ESt17basic_string_viewIcSt11char_traitsIcEERKSt6vectorIN3tsl4FlagESaIS6_EEb"
)
# static std::vector<tsl::Flag>* xla::flag_objects
_LIST = "_ZN3xlaL12flag_objectsE"
_VARIABLE = "XLA_FLAGS"


def set_flags(flags: str) -> None:
    """Sets flags of XLA's debug options in a process in which XLA has already computed. XLA_FLAGS is not changed.

    Raises:
        PyxlaError: torch_xla's library lacks the parser.
    """
    try:
        parse = _parser() if release("debug_flags") == "2.8" else _parser_of_list()
    except PyxlaError as error:
        raise PyxlaError(error.message, "call pyxla.hlo.dump_to before the first computation") from error
    kept = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = flags
    try:
        parse()
    finally:
        if kept is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = kept


def _parser():
    function = ctypes.CFUNCTYPE(None, ctypes.c_bool)(symbols.address("hlo", _PARSE))
    return lambda: function(True)


def _parser_of_list():
    # A std::string_view is passed as two words: its size and its text.
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_bool)
    function = prototype(symbols.address("hlo", _PARSE_LIST))
    flags = ctypes.c_void_p.from_address(symbols.address("hlo", _LIST))
    if not flags.value:  # XLA makes the list for its first compilation
        import torch
        import torch_xla

        torch.zeros((), device=torch_xla.device()).add(1).cpu()
    name = _VARIABLE.encode()
    return lambda: function(len(name), name, flags.value, True)
