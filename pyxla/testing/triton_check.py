"""The check of an op's Triton kernels, which needs no GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import unittest

from pyxla.testing.device_memory import loaded_library
from pyxla.torch_ops.custom_op import CustomOp


def check_triton(op: CustomOp) -> None:
    """Each case of the op with at most 2^20 elements, through the CUDA handler and Triton's interpreter, is right.

    It is skipped where Triton is not installed and if the library was built without CUDA code.
    """
    if importlib.util.find_spec("triton") is None:
        raise unittest.SkipTest("Triton is not installed")
    if not loaded_library(op).table.cuda_architectures:
        raise unittest.SkipTest(f"lib{op.library}.so has no CUDA code: devtool build {op.library} --cuda on")
    command = [sys.executable, "-P", "-m", "pyxla.testing.triton_interpreter", op.display_name]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{op.name}: in Triton's interpreter: {(done.stderr or done.stdout).strip()}"
