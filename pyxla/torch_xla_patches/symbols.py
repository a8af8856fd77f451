"""torch_xla 2.8 exports the functions of XLA that pyxla calls; 2.9 hides all of XLA.

The wheel of 2.9 keeps the table of local symbols, so their addresses can be read from the file. A name there is mangled
and so states the function's arguments; a stripped or another build lacks the name, and then nothing is called.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from functools import cache
from pathlib import Path

from pyxla.errors import PyxlaError, mismatch

# Exported by every version.
_EXPORTED = "PyInit__XLAC"
# Of a section header: the type of the table of all symbols. The sizes of a section header and of a symbol.
_SYMTAB = 2
_SECTION, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")


def address(where: str, *names: str) -> int:
    """The address in this process of the first of these functions or objects that torch_xla's library has.

    Args:
        where: what needs it, for the message.
        names: mangled names, of which each version has one.

    Raises:
        PyxlaError: it has none of them.
    """
    import torch_xla

    path = torch_xla._XLAC.__file__
    library = ctypes.CDLL(path)
    for name in names:
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        values = _value(path, name), _value(path, _EXPORTED)
        if all(values):
            return ctypes.cast(getattr(library, _EXPORTED), ctypes.c_void_p).value - values[1] + values[0]
    raise PyxlaError(
        mismatch(where, "torch_xla", f"a library with the symbol {names[-1]}", f"none in {path}"),
        "install the wheel that torch_xla publishes: another build may be stripped",
    )


@cache
def _value(path: str, name: str) -> int | None:
    """The value of a symbol in the file's table of all symbols; None if it is not there."""
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        (sections,) = struct.unpack_from("<Q", data, 0x28)
        _, count = struct.unpack_from("<HH", data, 0x3A)
        headers = [_SECTION.unpack_from(data, sections + i * _SECTION.size) for i in range(count)]
        for _, kind, _, _, offset, size, link, _, _, _ in headers:
            if kind == _SYMTAB:
                names, names_size = headers[link][4:6]
                found = data.find(b"\0" + name.encode() + b"\0", names, names + names_size)
                return None if found < 0 else _value_of(data, offset, size, found + 1 - names)
    return None


def _value_of(data: mmap.mmap, offset: int, size: int, name: int) -> int | None:
    """The value of the symbol whose name is at this place among the names."""
    wanted, place = struct.pack("<I", name), offset - 1
    while (place := data.find(wanted, place + 1, offset + size)) >= 0:
        if (place - offset) % _SYMBOL.size == 0:
            return _SYMBOL.unpack_from(data, place)[4]
    return None
