"""XLA's flags for the graphs of a model that fills the GPU's memory, and the precision of its products."""

from __future__ import annotations

import os

import torch

from pyxla.pjrt.platform import requested_device

FLAGS = (
    # A step of 64 rows is 4 % faster with cuBLAS than with the kernels that XLA generates for products.
    "--xla_gpu_enable_triton_gemm=false",
    # XLA counts the weights and caches, which fill most of the memory, and would compute tensors twice to save some.
    "--xla_disable_hlo_passes=rematerialization",
)


def set_flags() -> None:
    """Adds the flags on a GPU; call it before XLA starts. Those in XLA_FLAGS come after them and take precedence."""
    if requested_device() == "CUDA":
        os.environ["XLA_FLAGS"] = " ".join([*FLAGS, os.environ.get("XLA_FLAGS", "")]).strip()


def set_precision(dtype: torch.dtype) -> None:
    """Computes a float32 model's products in float32, as torch does on CUDA: XLA:CUDA would round operands to TF32.

    `torch.set_float32_matmul_precision("medium")` allows TF32 here too.

    Args:
        dtype: of the model.
    """
    from torch_xla.backends import set_mat_mul_precision

    if dtype == torch.float32:
        precision = torch.get_float32_matmul_precision()
        set_mat_mul_precision("default" if precision == "medium" else precision)
