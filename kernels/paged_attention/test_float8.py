"""The decode kernel's float8 conversion for GPUs without an instruction for it, run on the host for all pairs."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from pyxla import include_dir

PATH = "/usr/local/cuda/bin"
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path=PATH)
PROGRAM = """
#include <cstdio>

#include "pyxla/device/math.cuh"

int main() {
  for (uint32_t pair = 0; pair < 65536; ++pair) {
    const uint32_t halves = pyxla::E4m3x2ToHalf2Emulated(pair);
    std::fwrite(&halves, sizeof(halves), 1, stdout);
  }
}
"""


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_halves_of_float8(tmp_path):
    """Each is exact: zeros keep their sign, the smallest numbers are kept, both codes of NaN give NaN."""
    (tmp_path / "halves.cu").write_text(PROGRAM)
    command = [
        NVCC,
        "-std=c++17",
        f"-I{Path(__file__).parent.parent}",
        f"-I{include_dir()}",
        "-o",
        tmp_path / "halves",
        tmp_path / "halves.cu",
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([tmp_path / "halves"], capture_output=True, check=True)
    got = torch.frombuffer(bytearray(done.stdout), dtype=torch.float16).reshape(65536, 2)
    codes = torch.arange(65536, dtype=torch.int32)
    want = torch.stack([codes & 0xFF, codes >> 8], 1).to(torch.uint8).view(torch.float8_e4m3fn).double()
    assert torch.equal(got.isnan(), want.isnan())
    numbers = ~want.isnan()
    assert torch.equal(got.double()[numbers], want[numbers])
    assert torch.equal(got[numbers].signbit(), want[numbers].signbit())
