"""Reads the machine code in an op's library with cuobjdump: registers, memory and instructions of each kernel."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import struct
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from devtool import project
from devtool.building.tools import find_nvcc, in_wheel
from devtool.errors import DevtoolError
from devtool.processes import locate, run_lines
from devtool.pyxla_files import load_file

# Class of instructions -> how their names begin. The first match counts; REST is for those without a match.
CLASSES = {
    "tensor": r"\w*MMA",
    "float": "FFMA|FADD|FMUL|FMNMX|FSEL|FSET|FCHK|FSWZ|HADD|HMUL|HFMA|HSET|HMNMX|DADD|DMUL|DFMA|DSET|DMNMX|MUFU",
    "convert": "F2|I2|FRND",
    "integer": "IMAD|IADD|VIADD|UIADD|UIMAD|IMNMX|VIMNMX|IABS|ISETP|UISETP|LOP|ULOP|PLOP|UPLOP|LEA|ULEA|SHF|USHF|POPC"
    "|UPOPC|FLO|UFLO|BREV|UBREV|IDP|SGXT|BMSK",
    "control": "BRA|BRX|BSYNC|BSSY|CALL|RET|EXIT|BAR|WARP|YIELD|BREAK|MEMBAR|DEPBAR|ERRBAR|CGAERRBAR|FENCE"
    "|NANOSLEEP|ENDCOLLECTIVE|LDGDEPBAR|BPT|ELECT|USETMAXREG|ACQBULK|UCGABAR",
    "global memory": "LDG|STG|LD$|ST$|UTMA|UBLK|ATOMG|ATOM$|RED$|CCTL",
    "shared memory": "LDS|STS|ATOMS|SYNCS",
    "local memory": "LDL|STL",
}
REST = "moves, rest"
_CLASS = re.compile("|".join(f"(?P<c{i}>{names})" for i, names in enumerate(CLASSES.values())))
_FUNCTION = re.compile(r"\s+Function(?: : | )([\w$.]+)")
_USAGE = re.compile(r"\b(REG|STACK|SHARED):(\d+)")
_INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+ +)?([A-Z][A-Z0-9_]*)")
# The size of an instruction.
_BYTES = 16
# The sections of a kernel in a cubin: its code, and its attributes. cuobjdump calls the two attributes that bound a CTA
# EIATTR_MAX_THREADS and EIATTR_REQNTID, and the format whose value follows it EIFMT_SVAL.
_SECTION = re.compile(r"\.(text|nv\.info)\.(.+)")
_EXTRACTED = re.compile(r"Extracting ELF file +(\d+): (.+)")
_THREADS, _WITH_DATA = (0x05, 0x10), 4


@dataclass
class Kernel:
    """A kernel, compiled for one architecture.

    Attributes:
        architecture: "sm_90a".
        name: as in the source, with template arguments, without its namespace.
        registers: the number per thread.
        shared: static shared memory of a CTA, in bytes; what a launch adds is not in the library.
        stack: local memory per thread, in bytes: spilled registers, and arrays that are not in registers.
        threads: the most threads of a CTA, which __launch_bounds__ declares; None: nothing declares it.
        mix: class of instructions -> how many there are in the code.
    """

    architecture: str
    name: str
    registers: int = 0
    shared: int = 0
    stack: int = 0
    threads: int | None = None
    mix: Counter[str] = field(default_factory=Counter)


def find_cuobjdump() -> str | None:
    """cuobjdump on PATH, in the CUDA toolkit, or in the wheel of triton, which is installed with torch."""
    beside = [Path(nvcc).resolve().parent] if (nvcc := find_nvcc()) else []
    places = [*beside, Path("/usr/local/cuda/bin"), *in_wheel("triton", "backends/nvidia/bin")]
    return locate("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(map(str, places)))


def kernels_of(
    where: str, op: str, stop: threading.Event | None = None, *, library: Path | None = None
) -> list[Kernel]:
    """The kernels in the library of an op, at least one, sorted by architecture and name.

    Args:
        where: the command, for errors.
        op: the folder of the op.
        stop: as for `read_kernels`.
        library: another library of the op; None: the one in build/lib.

    Raises:
        DevtoolError: the library is not built, cannot be read or has no CUDA code, or there is no cuobjdump.
    """
    library = library or project.library(op)
    if not library.is_file():
        raise DevtoolError(f"{where}: {op}: expected a built library, got none", f"devtool build {op}")
    cuobjdump = find_cuobjdump()
    if cuobjdump is None:
        message = f"{where}: cuobjdump: expected it on PATH, in the CUDA toolkit or in triton's wheel, got none"
        raise DevtoolError(message, "install the CUDA toolkit, or run devtool through bin/devtool")
    kernels = read_kernels(where, library, cuobjdump, stop or threading.Event())
    if not kernels:
        message = f"{where}: {library.name}: expected CUDA code, got only host code"
        raise DevtoolError(message, f"devtool build {op} --cuda on")
    return kernels


def read_kernels(where: str, library: Path, cuobjdump: str, stop: threading.Event) -> list[Kernel]:
    """The kernels of a library, sorted by architecture and name; none if the library has no CUDA code.

    Args:
        where: the command, for errors.
        library: the library of an op.
        cuobjdump: from `find_cuobjdump`.
        stop: another thread sets it to end the reading with KeyboardInterrupt.

    Raises:
        DevtoolError: cuobjdump cannot read it.
    """
    # cuobjdump calls nvdisasm, which is in the same folder.
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(cuobjdump).parent), os.environ.get("PATH", "")]),
        "LC_ALL": "C",
    }

    def run(command: list[str], on_line: Callable[[str], None], cwd: Path | None = None) -> int:
        def read(line: str) -> None:
            if stop.is_set():
                raise KeyboardInterrupt
            on_line(line)

        return run_lines(command, read, environment, cwd)

    usage = _Usage()
    status = run([cuobjdump, "--dump-resource-usage", str(library.resolve())], usage.read)
    if status and not usage.without_code:
        raise DevtoolError(
            f"{where}: {library.name}: expected a library that cuobjdump can read, got {usage.said or status}",
            f"devtool build {library.stem.removeprefix('lib')} --clean",
        )
    with tempfile.TemporaryDirectory(prefix="devtool-sass-") as name:
        said: list[str] = []
        if usage.kernels:
            run([cuobjdump, "--extract-elf", "all", str(library.resolve())], said.append, Path(name))
        files = {int(m[1]): Path(name, m[2]) for line in said if (m := _EXTRACTED.match(line))}
        _read_files(Path(name), files, usage.kernels, run)
    return sorted(usage.kernels.values(), key=lambda k: (int(re.sub(r"\D", "", k.architecture)), k.name))


class _Usage:
    """Reads the resource usage that cuobjdump prints, by the number of the ELF file and the symbol.

    A symbol alone does not identify a kernel: Triton compiles one function many times, each time into its own file.
    """

    def __init__(self) -> None:
        self.kernels: dict[tuple[int, str], Kernel] = {}
        self.said, self.without_code = "", False
        self._number, self._architecture, self._symbol = 0, "", ""

    def read(self, line: str) -> None:
        if line.startswith("cuobjdump"):
            self.said, self.without_code = line, "does not contain device code" in line
        elif line.startswith("Fatbin elf code"):
            self._number += 1
        elif line.startswith("arch = "):
            self._architecture = line[7:].strip()
        elif match := _FUNCTION.match(line):
            self._symbol = match[1]
        elif "REG" in (values := {name: int(value) for name, value in _USAGE.findall(line)}):
            kernel = Kernel(self._architecture, source_name(self._symbol), *map(values.get, ("REG", "SHARED", "STACK")))
            self.kernels[self._number, self._symbol] = kernel


def _read_files(
    folder: Path, files: dict[int, Path], kernels: dict[tuple[int, str], Kernel], run: Callable[..., int]
) -> None:
    """Fills `threads` and `mix` from the extracted ELF files, `mix` in one run of nvdisasm for each architecture.

    cuobjdump runs nvdisasm for each file, which takes fifteen times as long if there are many small kernels. The counts
    stay empty if nvdisasm is missing or does not know the architecture.
    """
    from elftools.elf.elffile import ELFFile

    code: dict[str, list[tuple[Kernel, bytes]]] = {}
    for number, path in files.items():
        with path.open("rb") as file:
            for section in ELFFile(file).iter_sections():
                match = _SECTION.match(section.name)
                kernel = kernels.get((number, match[2])) if match else None
                if kernel and match[1] == "text":
                    code.setdefault(path.name.split(".")[-2], []).append((kernel, section.data()))
                elif kernel:
                    kernel.threads = _most_threads(section.data())
    for architecture, parts in code.items():
        owners = [kernel for kernel, data in parts for _ in range(len(data) // _BYTES)]

        def count(line: str, owners: list[Kernel] = owners) -> None:
            # A NOP pads the code.
            if (match := _INSTRUCTION.match(line)) and match[2] != "NOP":
                owners[int(match[1], 16) // _BYTES].mix[_class_of(match[2])] += 1

        (folder / "code").write_bytes(b"".join(data for _, data in parts))
        with contextlib.suppress(FileNotFoundError):
            run(["nvdisasm", "--binary", architecture.replace("sm_", "SM"), str(folder / "code")], count)


def _most_threads(attributes: bytes) -> int | None:
    """The product of the three sizes in a kernel's attributes, a list of (format, attribute, value or its length)."""
    at = 0
    while at + 4 <= len(attributes):
        form, attribute, value = struct.unpack_from("<BBH", attributes, at)
        at += 4
        if form == _WITH_DATA:
            if attribute in _THREADS:
                return math.prod(struct.unpack_from("<III", attributes, at))
            at += value
    return None


@cache
def _class_of(instruction: str) -> str:
    match = _CLASS.match(instruction)
    return list(CLASSES)[int(match.lastgroup[1:])] if match else REST


@cache
def source_name(symbol: str) -> str:
    """The name in the source, without namespace and parameters: `Kernel<float, 4>`; other symbols do not change."""
    name = load_file("library/kernel_names.py").demangled(symbol)
    return symbol if name == symbol else _without_parameters(name)


def _without_parameters(text: str) -> str:
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[place], 0)
        if text[place] == "(" and depth == 0:
            text = text[:place]
            break
    return re.sub(r"^(void )?(\w+::)*", "", re.sub(r"\((int|unsigned int|bool|long)\)", "", text)).replace("__nv_", "")


def spilled(kernels: Iterable[Kernel]) -> int:
    """How many kernels have instructions that access local memory."""
    return sum(bool(kernel.mix["local memory"]) for kernel in kernels)
