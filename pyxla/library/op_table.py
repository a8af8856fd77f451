"""Reads the op table of a custom-call library (pyxla/include/pyxla/ffi/op_table.h), after checking the file.

The file is checked first because the dynamic loader kills the process on a truncated library.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

from pyxla.errors import LibraryError, mismatch
from pyxla.library.contract import OP_TABLES, check_version
from pyxla.packages import NAMESPACE

__all__ = ["Handler", "OpTable"]

SYMBOL = "pyxla_op_table"

_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
# ELF's magic number, 64 bits, little-endian; and the size of a program header.
_ELF_64 = b"\x7fELF\x02\x01"
_SEGMENT_BYTES = 56


@dataclass(frozen=True)
class Handler:
    """One target on one platform; each stage is the address of its XLA_FFI_Handler, or None."""

    target: str
    platform: str
    instantiate: int | None
    prepare: int | None
    initialize: int | None
    execute: int | None


@dataclass(frozen=True)
class OpTable:
    """The op table of a library: see pyxla/include/pyxla/ffi/op_table.h for each field."""

    op: str
    ffi_api_version: tuple[int, int]
    cuda_architectures: tuple[str, ...]
    source_digest: str
    flags_digest: str
    compiler: str
    handlers: tuple[Handler, ...]
    triton_launch: ctypes._Pointer | None = None
    namespace: str = NAMESPACE
    version: int = OP_TABLES.newest

    @property
    def qualified_op(self) -> str:
        """The op for a message: with its namespace, unless that is pyxla's own."""
        return self.op if self.namespace == NAMESPACE else f"{self.namespace}::{self.op}"


class _CHandler(ctypes.Structure):
    _fields_ = [
        ("target", ctypes.c_char_p),
        ("platform", ctypes.c_char_p),
        ("instantiate", ctypes.c_void_p),
        ("prepare", ctypes.c_void_p),
        ("initialize", ctypes.c_void_p),
        ("execute", ctypes.c_void_p),
    ]


class _COpTable(ctypes.Structure):
    # The first two are in tables of all versions.
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("version", ctypes.c_int32),
        ("ffi_api_major", ctypes.c_int32),
        ("ffi_api_minor", ctypes.c_int32),
        ("op", ctypes.c_char_p),
        ("cuda_architectures", ctypes.c_char_p),
        ("source_digest", ctypes.c_char_p),
        ("flags_digest", ctypes.c_char_p),
        ("compiler", ctypes.c_char_p),
        ("handler_count", ctypes.c_size_t),
        ("handlers", ctypes.POINTER(_CHandler)),
        ("triton_launch", ctypes.POINTER(ctypes.c_void_p)),
        ("op_namespace", ctypes.c_char_p),
    ]


# The size of each version's table. Each has the fields of the one before it, and more behind them.
_SIZES = {3: _COpTable.op_namespace.offset, 4: ctypes.sizeof(_COpTable)}


def read_op_table(path: Path) -> OpTable | None:
    """Loads the library and returns its table, or None if it is a library of another kind (no such symbol).

    Raises:
        LibraryError: no such file, not a whole ELF library for this machine, or a table of another size.
        VersionError: a table of a version that this pyxla does not load.
    """
    check_elf(path)
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise LibraryError(mismatch(op_of(path), "library", "a loadable library", error), rebuild(path)) from error
    try:
        function = getattr(library, SYMBOL)
    except AttributeError:
        return None
    function.restype = ctypes.POINTER(_COpTable)
    table = function().contents
    version = table.version
    check_version("op table", "version", version, OP_TABLES, path, op_of(path))
    if table.struct_size != _SIZES[version]:
        size = f"{_SIZES[version]} bytes in version {version}"
        raise LibraryError(mismatch(op_of(path), "op table", size, f"{table.struct_size} in {path}"), rebuild(path))
    handlers = tuple(
        Handler(h.target.decode(), h.platform.decode(), h.instantiate, h.prepare, h.initialize, h.execute)
        for h in table.handlers[: table.handler_count]
    )
    return OpTable(
        op=table.op.decode(),
        ffi_api_version=(table.ffi_api_major, table.ffi_api_minor),
        cuda_architectures=tuple(filter(None, table.cuda_architectures.decode().split(","))),
        source_digest=table.source_digest.decode(),
        flags_digest=table.flags_digest.decode(),
        compiler=table.compiler.decode(),
        handlers=handlers,
        triton_launch=table.triton_launch,
        namespace=table.op_namespace.decode() if version >= 4 else NAMESPACE,
        version=version,
    )


def check_elf(path: Path) -> None:
    """Raises LibraryError unless the file is a whole 64-bit ELF library for this machine."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(64)
            if len(header) < 64 or header[:6] != _ELF_64 or header[54:56] != _SEGMENT_BYTES.to_bytes(2, "little"):
                raise LibraryError(
                    mismatch(op_of(path), "library", "a 64-bit ELF library", f"another file at {path}"), rebuild(path)
                )
            (machine,) = struct.unpack_from("<H", header, 18)
            segment_offset, section_offset = struct.unpack_from("<QQ", header, 32)
            segment_count, section_size, section_count = struct.unpack_from("<3H", header, 56)
            file.seek(min(segment_offset, size))
            segments = file.read(_SEGMENT_BYTES * segment_count)
    except OSError as error:
        raise LibraryError(mismatch(op_of(path), "library", "a readable file", error), rebuild(path)) from error
    expected_machine = _ELF_MACHINES.get(platform.machine())
    if expected_machine is not None and machine != expected_machine:
        raise LibraryError(
            mismatch(op_of(path), "library", f"code for {platform.machine()}", f"ELF machine {machine} in {path}"),
            rebuild(path),
        )
    ends = [section_offset + section_size * section_count, segment_offset + _SEGMENT_BYTES * segment_count]
    for offset in range(0, len(segments) - _SEGMENT_BYTES + 1, _SEGMENT_BYTES):
        file_offset, _, _, file_size = struct.unpack_from("<4Q", segments, offset + 8)
        ends.append(file_offset + file_size)
    if size < max(ends):
        raise LibraryError(
            mismatch(op_of(path), "library", f"{max(ends)} bytes, as its ELF header says", f"{size} in {path}"),
            rebuild(path),
        )


def op_of(path: Path) -> str:
    """The op that a library's file name names."""
    return path.name.removeprefix("lib").removesuffix(".so")


def rebuild(path: Path) -> str:
    """The command that rebuilds the library, for a hint."""
    return f"devtool build {op_of(path)}"
