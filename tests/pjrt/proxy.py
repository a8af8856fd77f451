"""Calls pjrt_proxy's functions as torch_xla does, through ctypes."""

import ctypes

from tests.conftest import ROOT

PROXY = ROOT / "build/lib/pyxla_pjrt_proxy.so"
HEAD, POINTER = 40, 8


class Proxy:
    """The proxy's function table."""

    def __init__(self, library: ctypes.CDLL):
        library.GetPjrtApi.restype = ctypes.c_void_p
        library.pyxla_take_error.restype = ctypes.c_bool
        self.library = library
        self.table = library.GetPjrtApi()
        self.size, self.extension, _, _, versions = (ctypes.c_uint64 * 5).from_address(self.table)
        self.version = (versions & 0xFFFFFFFF, versions >> 32)
        self.events_of_callers = 0

    def take_error(self) -> str | None:
        text = ctypes.create_string_buffer(200)
        return text.value.decode() if self.library.pyxla_take_error(text, ctypes.c_size_t(len(text))) else None

    def function(self, index: int) -> int:
        return ctypes.c_uint64.from_address(self.table + HEAD + index * POINTER).value

    def call(self, index: int, stated: int, words: list[int]) -> tuple[int | None, list[int]]:
        """Calls a function with a struct that states its size; returns the result and the struct's other words."""
        args = (ctypes.c_uint64 * (2 + len(words)))(stated, 0, *words)
        result = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self.function(index))(ctypes.addressof(args))
        assert args[0] == stated, "the caller's size is the caller's"
        return result, list(args[2:])
