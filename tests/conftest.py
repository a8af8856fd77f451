import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

only_2_8 = pytest.mark.skipif(
    not version("torch_xla").startswith("2.8."), reason="of torch_xla 2.8 alone: PYXLA_TORCH=2.8 bin/devtool"
)


# A shell starts a background job with SIGINT ignored; the processes that the tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def compile_library(source: Path, output: Path, *definitions: str) -> Path:
    """Compiles a source with the op headers, as the build does, for tests that need their own library."""
    finder = ROOT / "pyxla/cmake/find_wheels.py"
    include = subprocess.run([sys.executable, finder], check=True, capture_output=True, text=True).stdout.split(";")[0]
    command = [
        *(
            "g++",
            "-std=c++20",
            "-O1",
            "-shared",
            "-fPIC",
            f"-I{ROOT / 'kernels'}",
            f"-I{ROOT / 'pyxla/include'}",
            "-isystem",
            include,
        ),
        *('-DPYXLA_CUDA_ARCHITECTURES=""', '-DPYXLA_COMPILER="test"', '-DPYXLA_FLAGS_DIGEST="test"'),
        *("-Wall", "-Wextra", "-Werror"),
        *(f"-D{definition}" for definition in definitions),
        *(str(source), "-o", str(output), f"-Wl,--version-script={ROOT / 'pyxla/cmake/exports.map'}"),
    ]
    subprocess.run(command, check=True)
    return output


@pytest.fixture(scope="session")
def probe_library(tmp_path_factory):
    """The probe library, registered with XLA; it has only host handlers."""
    if os.environ.get("PJRT_DEVICE") == "CUDA":
        pytest.skip("the probe library has no CUDA code: --device cpu")
    from pyxla.library.find import Library
    from pyxla.library.op_table import read_op_table
    from pyxla.library.register import register_library

    path = compile_library(ROOT / "tests/probe/probe_ffi.cc", tmp_path_factory.mktemp("probe") / "libprobe.so")
    library = Library(path, "preloaded", read_op_table(path))
    register_library(library)
    return library


@pytest.fixture(scope="session")
def report_page(tmp_path_factory):
    """A tree with ops and records of every kind, and the page of `devtool report` about it."""
    from tests.report_page import make

    return make(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The documentation as pages, as `devtool docs` makes them, once for all tests."""
    output = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-P", "-m", "devtool", "docs", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{output / 'index.html'}\n"
    return output


def check_on_devices(count: int, folder: str) -> None:
    """Runs a folder's tests in a process with so many devices; all pass.

    torch_xla counts its devices once per process, and SPMD cannot be turned off again.
    """
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(count)}
    command = [sys.executable, "-P", "-m", "pytest", "-p", "pyxla.pytest_plugin", "-q", folder]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert " passed" in result.stdout and "skipped" not in result.stdout


# tests/spmd/test_shard.py, test_summed.py and tests/vllm/parallel/test_tensor_parallel.py run these in a process with
# several devices.
collect_ignore = [] if "CPU_NUM_DEVICES" in os.environ else ["spmd/mesh", "spmd/summed", "vllm/parallel/mesh"]
