"""Reads the machine code in an op's library with cuobjdump: registers, memory and instructions of each kernel."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from devtool.building.build import find_nvcc, in_wheel
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


@dataclass
class Kernel:
    """A kernel, compiled for one architecture.

    Attributes:
        architecture: "sm_90a".
        name: as in the source, with template arguments, without its namespace.
        registers: the number per thread.
        shared: static shared memory of a CTA, in bytes; what a launch adds is not in the library.
        stack: local memory per thread, in bytes: spilled registers, and arrays that are not in registers.
        mix: class of instructions -> how many there are in the code.
    """

    architecture: str
    name: str
    registers: int = 0
    shared: int = 0
    stack: int = 0
    mix: Counter[str] = field(default_factory=Counter)


def find_cuobjdump() -> str | None:
    """cuobjdump on PATH, in the CUDA toolkit, or in the wheel of triton, which is installed with torch."""
    beside = [Path(nvcc).resolve().parent] if (nvcc := find_nvcc()) else []
    places = [*beside, Path("/usr/local/cuda/bin"), *in_wheel("triton", "backends/nvidia/bin")]
    return locate("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(map(str, places)))


def read_kernels(library: Path, cuobjdump: str, stop: threading.Event) -> list[Kernel]:
    """The kernels of a library, sorted by architecture and name; none if the library has no CUDA code.

    Args:
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
            f"report: {library.name}: expected a library that cuobjdump can read, got {usage.said or status}",
            f"devtool build {library.stem.removeprefix('lib')} --clean",
        )
    with tempfile.TemporaryDirectory(prefix="devtool-sass-") as name:
        if usage.kernels:
            run([cuobjdump, "--extract-elf", "all", str(library.resolve())], lambda line: None, Path(name))
        _count_instructions(Path(name), usage.kernels, run)
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


def _count_instructions(folder: Path, kernels: dict[tuple[int, str], Kernel], run: Callable[..., int]) -> None:
    """Fills `mix` from the extracted ELF files, in one run of nvdisasm for all code of an architecture.

    cuobjdump runs nvdisasm for each file, which takes fifteen times as long if there are many small kernels. The counts
    stay empty if nvdisasm is missing or does not know the architecture.
    """
    from elftools.elf.elffile import ELFFile

    code: dict[str, list[tuple[Kernel, bytes]]] = {}
    for path in sorted(folder.glob("*.cubin")):
        number = int(path.name.split(".")[-3])
        with path.open("rb") as file:
            for section in ELFFile(file).iter_sections():
                kernel = kernels.get((number, section.name.removeprefix(".text.")))
                if kernel and section.name.startswith(".text."):
                    code.setdefault(path.name.split(".")[-2], []).append((kernel, section.data()))
    for architecture, parts in code.items():
        owners = [kernel for kernel, data in parts for _ in range(len(data) // _BYTES)]

        def count(line: str, owners: list[Kernel] = owners) -> None:
            # A NOP pads the code.
            if (match := _INSTRUCTION.match(line)) and match[2] != "NOP":
                owners[int(match[1], 16) // _BYTES].mix[_class_of(match[2])] += 1

        (folder / "code").write_bytes(b"".join(data for _, data in parts))
        with contextlib.suppress(FileNotFoundError):
            run(["nvdisasm", "--binary", architecture.replace("sm_", "SM"), str(folder / "code")], count)


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
