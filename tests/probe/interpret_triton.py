"""Runs rms_norm's kernel in Triton on all cases in Triton's interpreter (TRITON_INTERPRET=1), against float64.

interpret_triton.py CHECKOUT
"""

import sys
from pathlib import Path

import torch
import triton.runtime.interpreter as interpreter
from pyxla_kernels.rms_norm.cases import CASES
from pyxla_kernels.rms_norm.rms_norm import rms_norm

from pyxla.testing.tolerance import compare

sys.path.insert(0, f"{sys.argv[1]}/kernels/cmake")
from triton_spec import read_variants

TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


def with_numpy_2(patch):
    """Triton 3.4 uses an array with one element as an index, which numpy 2 rejects."""

    def patched(tensor):
        patch(tensor)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    return patched


interpreter._patch_lang_tensor = with_numpy_2(interpreter._patch_lang_tensor)
variants = read_variants(Path(sys.argv[1]) / "kernels/rms_norm_triton/triton_kernels.py")
for case in CASES:
    x, weight, eps = case.arguments(0).values()
    out = torch.empty_like(x)
    hidden = x.shape[-1]
    values = {"rows": x.numel() // hidden if hidden else 0, "hidden": hidden}
    operands = {"x": x, "weight": torch.empty(0, dtype=x.dtype) if weight is None else weight, "out": out}
    addresses = {name: tensor.data_ptr() for name, tensor in operands.items()}
    types = {name: TYPES[tensor.dtype] for name, tensor in operands.items()}
    variant = next(v for v in variants if v.takes(types, values | addresses))
    if values["rows"]:
        grid = tuple(size.value(values) for size in variant.grid)
        variant.kernel[grid](**operands, **values, eps=eps, **variant.constants)
    wide = None if weight is None else weight.double()
    share = compare(str(case), out, rms_norm.reference(x.double(), wide, eps))
    print(case, variant.constants, share)
