import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A shell starts a job in the background with SIGINT ignored, and so would be the processes that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def compile_library(source: Path, output: Path, *definitions: str) -> Path:
    """Compiles a source with the op headers as the build does, for tests that need a library of their own."""
    finder = ROOT / "kernels/cmake/find_wheels.py"
    include = subprocess.run([sys.executable, finder], check=True, capture_output=True, text=True).stdout.split(";")[0]
    command = [
        *("g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{ROOT / 'kernels'}", "-isystem", include),
        *('-DPYXLA_CUDA_ARCHITECTURES=""', '-DPYXLA_COMPILER="test"', '-DPYXLA_FLAGS_DIGEST="test"'),
        *("-Wall", "-Wextra", "-Werror"),
        *(f"-D{definition}" for definition in definitions),
        *(str(source), "-o", str(output), f"-Wl,--version-script={ROOT / 'kernels/cmake/exports.map'}"),
    ]
    subprocess.run(command, check=True)
    return output


@pytest.fixture(scope="session")
def probe_library(tmp_path_factory):
    """The probe library, registered with XLA."""
    from pyxla.libraries import Library
    from pyxla.op_table import read_op_table
    from pyxla.registry import register_library

    path = compile_library(ROOT / "tests/probe/probe_ffi.cc", tmp_path_factory.mktemp("probe") / "libprobe.so")
    library = Library(path, "preloaded", read_op_table(path))
    register_library(library)
    return library
