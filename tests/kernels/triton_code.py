"""The GPU's code in a Triton op's library, as cuobjdump shows it."""

import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

# The parameters for scratch memory that Triton adds.
SCRATCH = 1 if version("triton").startswith("3.4.") else 2


def cubins(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.cubin"))


def cuobjdump(option: str, path: Path) -> str:
    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return subprocess.run([program, option, path], check=True, capture_output=True, text=True).stdout


def parameter_sizes(cubin: Path) -> dict[str, list[int]]:
    """Kernel -> sizes of its parameters in bytes, in the GPU's code."""
    found = {}
    for section in cuobjdump("-elf", cubin).split("\n.nv.info.")[1:]:
        rows = re.findall(r"Ordinal : 0x(\w+)\s+Offset  : 0x\w+\s+Size    : 0x(\w+)", section.split("\n\n")[0])
        found[section.split()[0]] = [int(size, 16) for _, size in sorted((int(at, 16), size) for at, size in rows)]
    return found
