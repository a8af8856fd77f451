"""Calls an op's CUDA handler where there is no GPU: everything up to the launch of its kernel runs on the host."""

from __future__ import annotations

import torch

from pyxla.errors import PyxlaError
from pyxla.pjrt import cuda_plugin
from pyxla.testing.case import Case
from pyxla.testing.device_memory import HostMemory, call_in, loaded_library
from pyxla.torch_ops.custom_op import CustomOp

# What PYXLA_CUDA_STATUS makes of a launch without a GPU (pyxla/include/pyxla/ffi/cuda.h).
_LAUNCH = ": launch: expected cudaSuccess, got cudaError"


def check_cuda_handler(op: CustomOp, case: Case) -> bool:
    """The CUDA handler takes the operands and attributes as the schema has them, passes its own checks, and launches.

    XLA's FFI compares counts, kinds and names with the handler's binding when it is called, and the handler checks its
    operands: two in the wrong order are refused. The launch fails without a GPU, and the handler must return that.

    Returns:
        Whether the handler was called: not where a GPU is visible, on which `--device cuda` runs it, and not if the
        library was built without CUDA code.

    Raises:
        AssertionError: the handler returned another error, or none.
    """
    library = loaded_library(op.library)
    has_handler = any((h.target, h.platform) == (op.target, "CUDA") for h in library.table.handlers)
    if not has_handler or _has_gpu():
        return False
    call = call_in(HostMemory(), op, case.arguments(), "CUDA", check=False)
    try:
        call.launch(0)
    except PyxlaError as error:
        assert _LAUNCH in str(error), f"{op.name}: the CUDA handler refuses case {case.name}: {error}"
    else:
        tensors = [v for v in (*call.operands.values(), *call.results) if isinstance(v, torch.Tensor)]
        assert not all(t.numel() for t in tensors), (
            f"{op.name}: the CUDA handler: expected the error of a launch without a GPU, got none: "
            "return PYXLA_CUDA_STATUS of the launch, and cudaGetLastError() after it"
        )
    return True


def _has_gpu() -> bool:
    try:
        return bool(cuda_plugin.gpus())
    except PyxlaError:
        return False
