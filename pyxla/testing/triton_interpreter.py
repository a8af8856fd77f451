"""Runs an op's CUDA handler with its Triton kernels in Triton's interpreter, on the CPU, and compares the numbers.

    TRITON_INTERPRET=1 python -m pyxla.testing.triton_interpreter OP

The handler checks the arguments, chooses a variant, and passes grid and parameters as for a launch on a GPU; only then
the interpreter takes over. Triton reads TRITON_INTERPRET when it is imported, so this needs its own process.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyxla.packages import package_of_folder, split_name
from pyxla.paths import cmake_dir
from pyxla.testing.case import Case, cases_of
from pyxla.testing.device_memory import HostMemory, call_in, loaded_library
from pyxla.testing.tolerance import worst_element
from pyxla.torch_ops.custom_op import CustomOp, find_op

# The interpreter runs the programs of a grid one after the other, in Python.
_MOST_ELEMENTS = 1 << 20
_POINTERS = {
    "fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "i1": torch.bool,
}  # fmt: skip
_C_TYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float, "fp64": ctypes.c_double}


class Interpreter:
    """Takes the launches of an op's library.

    Attributes:
        tensors: the operands and results of the call that is made, to which the kernels' pointers point.
        error: the exception of the last launch.
    """

    def __init__(self, op: CustomOp):
        sys.path.insert(0, cmake_dir())
        triton_spec = importlib.import_module("triton_spec")
        self._variants = triton_spec.read_variants(op.package.folder / op.library / "triton_kernels.py")
        self.tensors: Sequence[torch.Tensor] = ()
        self.error: Exception | None = None
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_bool, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_void_p)
        )
        self._launch = prototype(self._run)
        loaded_library(op).table.triton_launch[0] = ctypes.cast(self._launch, ctypes.c_void_p).value

    def _run(self, index: int, grid: Any, arguments: Any) -> bool:
        variant = self._variants[index]
        try:
            values = {
                name: self._value(type_, arguments[place]) for place, (name, type_) in enumerate(variant.types.items())
            }
            variant.kernel[tuple(grid[:3])](**values, **variant.constants)
        except Exception as error:
            self.error = error
        return self.error is None

    def _value(self, type_: str, address: int) -> Any:
        if not type_.startswith("*"):
            return _C_TYPES[type_].from_address(address).value
        pointer = ctypes.c_void_p.from_address(address).value or 0
        for tensor in self.tensors:
            offset = pointer - tensor.data_ptr()
            if 0 <= offset < tensor.nbytes:
                return tensor.reshape(-1)[offset // tensor.itemsize :]
        return torch.empty(0, dtype=_POINTERS[type_[1:]])  # null, or the address of a tensor without elements


def call_interpreted(op: CustomOp, interpreter: Interpreter, case: Case) -> tuple[torch.Tensor, ...]:
    """What the CUDA handler writes for a case: first the arguments that it updates in place, then the results."""
    call = call_in(HostMemory(), op, case.arguments(), "CUDA", check=False)
    memory = (*call.operands.values(), *call.results, call.workspace)
    interpreter.tensors = [tensor for tensor in memory if isinstance(tensor, torch.Tensor)]
    interpreter.error = None
    try:
        call.launch(0)
    finally:
        if interpreter.error is not None:
            raise interpreter.error
    return (*(call.operands[a.name] for a in op.schema.mutated), *call.results)


def _accept_numpy_2(patch: Callable) -> Callable:
    """Triton 3.4 uses an array with one element as an index, which numpy 2 refuses."""

    def patched(tensor: Any, *others: Any) -> None:  # later versions pass more
        patch(tensor, *others)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    return patched


def main(name: str) -> None:
    """Compares all small cases; prints one line for each."""
    from triton.runtime import interpreter as triton_interpreter

    from pyxla.testing.op_checks import oracle

    triton_interpreter._patch_lang_tensor = _accept_numpy_2(triton_interpreter._patch_lang_tensor)
    namespace, op_name = split_name(name)
    library = op_name.replace(".", "_")
    importlib.import_module(package_of_folder(library, namespace).module(library))
    op = find_op(name)
    interpreter = Interpreter(op)
    for case in cases_of(op):
        arguments = case.arguments()
        if sum(v.numel() for v in arguments.values() if isinstance(v, torch.Tensor)) > _MOST_ELEMENTS:
            continue
        for got, want in zip(call_interpreted(op, interpreter, case), oracle(op, arguments), strict=True):
            share = worst_element(f"{name}[{case}]", got, want, roundings=case.roundings_of(got, "CUDA")).share
            print(f"{case} {share:.0%}")


if __name__ == "__main__":
    main(sys.argv[1])
