"""`devtool new-op --from` in a repository of its own: what it writes, what its tests show, and what it refuses."""

import re
import subprocess
import sys

import pytest

from tests.devtool.scaffold.test_init import made, run
from tests.devtool_tree import needs_nvcc

CUDA = """#include "scale.h"

namespace mine {

template <typename T>
__global__ void Kernel(const T* x, const int* shift, T* out, int64_t count, float alpha) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) out[i] = Times(alpha, x[i]) + shift[i];
}

void scale_shift(const float* x, const int* shift, float* out, int64_t n, float alpha, cudaStream_t stream) {
  Kernel<float><<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream>>>(x, shift, out, n, alpha);
}

}  // namespace mine
"""
HEADER = "#pragma once\nstatic __device__ inline float Times(float a, float b) { return a * b; }\n"
TRITON = """import torch
import triton
import triton.language as tl


@triton.jit
def scale_rows(x_ptr, w_ptr, out_ptr, x_stride, rows, cols, alpha, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, cols, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + i, mask=i < cols).to(tl.float32)
        w = tl.load(w_ptr + row * x_stride + i, mask=i < cols).to(tl.float32)
        tl.store(out_ptr + row * x_stride + i, (x * w * alpha).to(out_ptr.dtype.element_ty), mask=i < cols)


def call(x, w):
    out = torch.empty_like(x)
    scale_rows[(x.shape[0],)](x, w, out, x.stride(0), *x.shape, 2.0, BLOCK=1024)
    return out
"""
PYTHON = """import torch

HALF = 0.5


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.double()


def leaky(x: torch.Tensor, slope: float = HALF) -> torch.Tensor:
    \"\"\"x where it is above 1, else slope * x.\"\"\"
    return torch.where(x > 1, wide(x), slope * wide(x)).to(x.dtype)


def count(seen: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    seen += more
    return seen
"""
# Op -> --from, and what the command says.
OPS = {
    "scaled_shift": ("scale.cu", "the test passes on the CPU; on a GPU it fails until the reference says"),
    "scaled_rows": ("rows.py", "the test passes without nvcc; with it, the kernel runs in Triton's interpreter"),
    "leaky": ("lib.layers:leaky", "the kernels are stubs, so the test fails until they compute the same"),
    "count": ("lib/layers.py:count", "the kernels are stubs, so the test fails until they compute the same"),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with the user's files and an op made from each."""
    root = made(tmp_path_factory.mktemp("from"), "mine")
    (root / "lib").mkdir()
    for name, text in {"scale.cu": CUDA, "scale.h": HEADER, "rows.py": TRITON, "lib/layers.py": PYTHON}.items():
        (root / name).write_text(text)
    for op, (what, outcome) in OPS.items():
        result = run(root, "new-op", op, "--from", what)
        assert result.returncode == 0, result.stderr
        assert outcome in result.stderr
    return root


def test_writes_the_folder_and_lists_what_it_did_not_know(repository):
    result = run(repository, "new-op", "again", "--from", "scale.cu")
    assert result.returncode == 0, result.stderr
    files = [line.rpartition("/")[2] for line in result.stdout.splitlines()]
    own = ["again.cu", "again.h", "again.py", "again_ffi.cc", "again_host.cc"]
    assert sorted(files) == sorted(["__init__.py", *own, "cases.py", "scale.cuh", "scale.h", "test_again.py"])
    folder = repository / "kernels/again"
    assert (folder / "scale.cuh").read_text() == CUDA and (folder / "scale.h").read_text() == HEADER
    listed = re.findall(r"^  kernels/again/([\w.]+):(\d+): (.*)$", result.stderr, re.MULTILINE)
    marks = sum(path.read_text().count("replace: ") for path in folder.iterdir())
    assert len(listed) == marks > 8
    assert any("n: taken for the number of elements" in text for _, _, text in listed)
    for file, number, text in listed:
        assert text in (folder / file).read_text().splitlines()[int(number) - 1]
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


@pytest.mark.parametrize("what", [what for what, _ in OPS.values()])
def test_dry_run_prints_the_files_and_writes_nothing(repository, what):
    before = sorted(repository.rglob("*"))
    result = run(repository, "new-op", "dry", "--from", what, "--dry-run")
    assert result.returncode == 0 and sorted(repository.rglob("*")) == before
    shown = re.findall(r"^==> kernels/dry/(.*) <==$", result.stdout, re.MULTILINE)
    assert {"dry.py", "dry_host.cc", "cases.py"} <= set(shown)
    assert {"scale.cu": CUDA, "rows.py": "def scale_rows("}.get(what, "import torch") in result.stdout


def test_files_follow_the_repositorys_own_rules(repository):
    for tool in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *tool, "--no-cache", "kernels"]
        result = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "scale.cu", "--route", "triton"], "--route: expected cuda with --from scale.cu, got triton"),
        (["--from", "rows.py", "--route", "wrap"], "--route: expected triton with --from rows.py, got wrap"),
        (["--from", "scale.cu", "--library", "a.so"], "--library: expected --route wrap with it, got --route cuda"),
        (["--from", "lib.layers:leaky", "--symbol", "leaky"], "--symbol: expected --route wrap with it, got --route"),
        (["--from", "scale.cu", "--implementation", "fast"], "--from: expected a new op, got --implementation"),
        (["--from", "scale.cu:f"], "--from: expected a CUDA file without a function, got scale.cu:f"),
        (["--from", "scale"], "--from: expected FILE.cu, FILE.cuh, FILE.py or MODULE:FUNCTION, got scale"),
        (["--from", "gone.cu"], "--from: expected a file, got none at gone.cu"),
        (["--from", "lib.gone:leaky"], "--from: expected a module that Python finds, got lib.gone"),
        (["--from", "lib.layers:gone"], "--from: expected a function of lib/layers.py (wide, leaky, count), got gone"),
        (["--from", "rows.py:call"], "--from: rows.py:16: call: x: expected a type hint, got none"),
        (["(Tensor x, flaot a) -> Tensor", "--from", "scale.cu"], "schema: expected one of Tensor, "),
        (["(Tensor x) -> Tensor", "--from", "scale.cu"], "SCHEMA: expected Tensor shift, got none"),
    ],
)  # fmt: skip
def test_refuses_and_writes_nothing(repository, arguments, message):
    before = sorted(repository.rglob("*"))
    result = run(repository, "new-op", "unwritten", *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith(f"new-op: {message}") and "\nhint: " in result.stderr
    assert sorted(repository.rglob("*")) == before


def test_an_op_that_exists_is_not_made_anew(repository):
    result = run(repository, "new-op", "scaled", "--from", "scale.cu", "--route", "cuda")
    assert result.returncode == 2 and "--from: expected a new op, got scaled, which exists" in result.stderr


def failures(result) -> set[str]:
    """Which checks of which ops failed."""
    return set(re.findall(r"^FAILED kernels/(\w+)/\S+?::(\w+)", result.stdout, re.MULTILINE))


@pytest.mark.slow
def test_the_fresh_folders_show_what_was_promised(repository):
    result = run(repository, "test", *OPS, "--", "-rf", "-k", "bad_input or f32-3x5 or f32-7x40001")
    assert failures(result) == {("leaky", "test_op"), ("count", "test_op")}, result.stdout[-3000:]
    for op, passes in {"scaled_shift": True, "scaled_rows": True, "leaky": False, "count": False}.items():
        row = next(line for line in result.stdout.splitlines() if line.split()[:1] == [op])
        assert ("FAILED" not in row) == passes
    assert "stub: scaled_shift, scaled_rows, leaky, count: still to be replaced" in result.stdout


@pytest.mark.slow
@needs_nvcc
def test_cuda_code_of_the_fresh_folders_compiles_and_triton_disagrees(repository):
    result = run(repository, "test", *OPS, "--cuda", "on", "--", "-rf", "-k", "interpreter or (check_raw and f32-3x5)")
    assert ("scaled_rows", "test_numbers_in_tritons_interpreter") in failures(result), result.stdout[-3000:]
    assert (
        "scaled_shift: compiled for 3 architectures (80, 90a, 100), handlers called up to the launch" in result.stdout
    )


# File -> what its author replaces: the reference of the Triton kernel, the host code of all.
EDITS = {
    "scaled_rows/scaled_rows.py": {
        "    factor = alpha\n": "",
        "    blend = x.to(wide) + 2 * w.to(wide)\n": "",
        "(factor * blend)": "(alpha * x.to(wide) * w.to(wide))",
    },
    "scaled_rows/scaled_rows_host.cc": {"blend += 2 * pyxla::ToFloat(w[i]);": "blend *= pyxla::ToFloat(w[i]);"},
    "leaky/leaky_host.cc": {"factor * blend": "(blend > 1 ? 1 : factor) * blend"},
    "count/count_host.cc": {
        "  const float factor = static_cast<float>(Factor(params));\n": "",
        "blend += 2 * ": "blend += ",
        "factor * blend": "blend",
    },
}


@pytest.mark.slow
@needs_nvcc
def test_with_the_formula_they_pass(repository):
    """Last in this file, because the ops stay changed. Triton's interpreter agrees: each parameter got its value."""
    for name, edits in EDITS.items():
        path = repository / "kernels" / name
        text = path.read_text()
        for old, new in edits.items():
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        path.write_text(text)
    select = "not 40001 and (interpreter or lazy or raw or bad_input)"
    result = run(repository, "test", "scaled_rows", "leaky", "count", "--cuda", "on", "--", "-rf", "-k", select)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr
    assert re.search(r"^\d\d+ passed, 0 failed, 0 skipped", result.stdout.splitlines()[-1])
