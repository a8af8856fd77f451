"""The snippets for editors in a repository of one's own: with their defaults they are code that compiles and runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from devtool.repository import Repository
from devtool.scaffold.repository_folder import _write
from pyxla.library.op_table import read_op_table
from pyxla.testing import BadInput, Case
from tests.conftest import ROOT, compile_library

INCLUDES = ["pyxla/ffi/checks.h", "pyxla/ffi/cuda.h", "pyxla/ffi/op_table.h", "pyxla/host/parallel.h"]
# What a place for the cursor may hold: text with other places in it, but no place with a text of its own.
PLACE = re.compile(r"\$(\d)|\$\{(\d):((?:[^{}]|\{[^{}]*\})*)\}")


@pytest.fixture(scope="module")
def snippets(tmp_path_factory) -> dict[str, str]:
    """Prefix -> what an editor inserts if the user changes nothing."""
    folder = tmp_path_factory.mktemp("own")
    _write(folder, "my-kernels", Repository(folder, "my_kernels", "my_kernels", {}))
    entries = json.loads((folder / ".vscode/pyxla.code-snippets").read_text())
    return {entry["prefix"]: inserted("\n".join(entry["body"])) for entry in entries.values()}


def inserted(body: str) -> str:
    texts: dict[str, str] = {}

    def replaced(match: re.Match) -> str:
        number, named, text = match.groups()
        if named:
            texts[named] = PLACE.sub(replaced, text)
        return texts[named or number]

    return PLACE.sub(replaced, body)


def source(snippets: dict[str, str], *names: str) -> str:
    handlers = "\n\n".join(snippets[name] for name in names)
    launch = "cudaError_t LaunchScaled(cudaStream_t, const void*, void*, int64_t, float) { return cudaSuccess; }"
    head = "".join(f'#include "{name}"\n' for name in INCLUDES)
    return f"""{head}
namespace {{
constexpr char kOp[] = "scaled";
#if PYXLA_WITH_CUDA
{launch}
#endif
{handlers}
}}  // namespace
{snippets["xla-table"]}
// As the build writes it.
namespace pyxla {{
extern const char kSourceDigest[];
const char kSourceDigest[] = "none";
}}
"""


def test_handler_on_the_host(snippets, tmp_path):
    path = tmp_path / "scaled_ffi.cc"
    path.write_text(source(snippets, "xla-check", "xla-host"))
    table = read_op_table(compile_library(path, tmp_path / "libscaled.so"))
    assert table.op == "scaled"
    assert [handler.target for handler in table.handlers] == ["my_kernels_scaled"]


def test_handler_on_cuda(snippets, tmp_path):
    """Its syntax alone: nothing is linked."""
    headers = Path("/usr/local/cuda/include")
    if not (headers / "cuda_runtime_api.h").is_file():
        pytest.skip("needs CUDA's headers in /usr/local/cuda")
    path = tmp_path / "scaled_ffi.cc"
    path.write_text(source(snippets, "xla-check", "xla-host", "xla-cuda"))
    finder = [sys.executable, ROOT / "pyxla/cmake/find_wheels.py"]
    include = subprocess.run(finder, check=True, capture_output=True, text=True).stdout.split(";")[0]
    command = [
        *("g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-DPYXLA_WITH_CUDA=1"),
        *('-DPYXLA_CUDA_ARCHITECTURES=""', '-DPYXLA_COMPILER="test"', '-DPYXLA_FLAGS_DIGEST="test"'),
        *(f"-I{ROOT / 'pyxla/include'}", "-isystem", include, "-isystem", headers, path),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_cases(snippets):
    (case,) = eval(f"[{snippets['pyxla-case']}]", {"Case": Case, "torch": torch})
    assert case.arguments()["x"].shape == (7, 1000) and case.arguments()["factor"] == 2.0
    (bad,) = eval(f"[{snippets['pyxla-bad']}]", {"BadInput": BadInput, "torch": torch})
    assert bad.arguments()["x"].dtype == torch.int32
    assert bad.message == "scaled: x: expected dtype float32, got int32"
