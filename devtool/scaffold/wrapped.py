"""What an op of the route wrap calls: a library with a C ABI, or a header. It is checked before anything is written."""

from __future__ import annotations

import difflib
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devtool.errors import MISUSED, DevtoolError

_HEADERS = (".h", ".hh", ".hpp", ".cuh", ".inc")
# Valid names of the file, which is named in CMake's commands, in an #include and after vendor/.
_FILE = re.compile(r"\w[\w.+-]*", re.ASCII)
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}


@dataclass(frozen=True)
class Wrapped:
    """What wrapped.json says, and where the file comes from.

    Attributes:
        path: the user's file.
        file: its name in the op's folder vendor/; for a library, the name that the loader looks for.
        name, version, licence: of the project that it belongs to; the licence's SPDX identifier.
        symbols: the functions of a library that the op calls; none for a header.
    """

    path: Path
    file: str
    name: str
    version: str
    licence: str
    symbols: tuple[str, ...]

    @property
    def library(self) -> str | None:
        """The library's name; None for a header."""
        return self.file if self.symbols else None

    @property
    def json(self) -> str:
        """The text of wrapped.json."""
        fields = {"name": self.name, "version": self.version, "licence": self.licence}
        if self.library:
            fields |= {"library": self.library, "symbols": list(self.symbols)}
        return json.dumps(fields, indent=2)


def read_wrapped(library: str | None, symbols: Sequence[str], version: str | None, licence: str | None) -> Wrapped:
    """Checks what the options of --route wrap name.

    Raises:
        DevtoolError: an option is missing, the file cannot be wrapped, or it lacks a symbol.
    """
    if library is None:
        hint = "devtool new-op my_op --route wrap --library libfoo.so --symbol foo_f32 --version 1.2 --licence MIT"
        raise _refused("--library", "a library (.so) or header to wrap", "none", hint)
    path = Path(library)
    if not path.is_file():
        raise _refused("--library", "a file", f"none at {path}", "name the library's or the header's file")
    for option, value, example in (("--version", version, "1.2.3"), ("--licence", licence, "Apache-2.0")):
        if not value:
            hint = f"{option} {example}: it is recorded in the op's folder and in the library's manifest"
            raise _refused(option, f"the {option[2:]} of {path.name}", "none", hint)
    if path.suffix in _HEADERS:
        if symbols:
            raise _refused("--symbol", "none for a header", symbols[0], "leave it out")
        _check_file(path.name, path, "copy it to a file of another name")
        return Wrapped(path, path.name, path.stem, version, licence, ())
    soname, exported = _read_library(path)
    _check_file(soname, path, f"link it with -Wl,-soname,NAME.so, or patchelf --set-soname NAME.so {path}")
    if not symbols:
        raise _refused("--symbol", "each function of the library that the op calls", "none", "--symbol NAME")
    for symbol in symbols:
        if symbol not in exported:
            near = difflib.get_close_matches(symbol, exported, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"nm -D --defined-only {path} lists what it exports"
            raise _refused("--symbol", f"a symbol that {path.name} exports", symbol, hint)
    return Wrapped(path, soname, path.name.split(".")[0].removeprefix("lib"), version, licence, tuple(symbols))


def _read_library(path: Path) -> tuple[str, list[str]]:
    """The name that the loader looks for, and the symbols that the library exports."""
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            machine, kind = elf["e_machine"], elf["e_type"]
            dynamic = elf.get_section_by_name(".dynamic")
            tags = list(dynamic.iter_tags()) if dynamic else []
            table = elf.get_section_by_name(".dynsym")
            symbols = list(table.iter_symbols()) if table else []
    except Exception as error:  # whatever pyelftools' parser trips over
        raise _refused(
            "--library", "an ELF library or a header", f"{error} in {path}", "name a .so or .h file"
        ) from None
    if kind != "ET_DYN":
        raise _refused("--library", "a shared library", f"{kind} in {path}", "link it with -shared")
    expected = _MACHINES.get(platform.machine(), machine)
    if machine != expected:
        hint = "take the library that was built for this machine"
        raise _refused("--library", f"code for {platform.machine()} ({expected})", f"{machine} in {path}", hint)
    soname = next((tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"), path.name)
    return soname, [symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF" and symbol.name]


def _check_file(name: str, path: Path, hint: str) -> None:
    """Raises DevtoolError unless a file in vendor/ can have this name."""
    if not _FILE.fullmatch(name):
        got = repr(name) if name == path.name else f"the SONAME {name!r} in {path}"
        raise _refused("--library", "a name of letters, digits and _ . + -, no path", got, hint)


def _refused(option: str, expected: str, got: object, hint: str) -> DevtoolError:
    return DevtoolError(f"new-op: {option}: expected {expected}, got {got}", hint, MISUSED)


def refuse_options(route: str, **options: object) -> None:
    """Raises DevtoolError if an option of --route wrap is given with another route."""
    for name, value in options.items():
        if value:
            raise _refused(f"--{name}", "--route wrap with it", f"--route {route}", "add --route wrap, or leave it out")
