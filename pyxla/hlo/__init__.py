"""The HLO of lazily traced tensors, and the modules and thunks that XLA compiles it to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pyxla.hlo import text as hlo_text
from pyxla.hlo.dump import dump_folder, dump_to, dumping, final_thunks, written_files

__all__ = ["dump_folder", "dump_to", "dumping", "lowered", "optimized_modules", "stablehlo", "thunk_sequences"]


def lowered(tensors: list[torch.Tensor]) -> str:
    """The module that computes these XLA tensors, before XLA optimises it; the tensors stay pending."""
    import torch_xla

    return torch_xla._XLAC._get_xla_tensors_hlo(tensors)


def stablehlo(text: str) -> str:
    """Converts a module from HLO text to StableHLO text, without its donated buffers; erf becomes mhlo.erf.

    Args:
        text: the module before XLA optimises it.
    """
    with _as_stablehlo(text) as module:
        return module.operation.get_asm(enable_debug_info=False)


def bytecode(text: str) -> bytes:
    """Converts a module from HLO text to StableHLO bytecode for a compiler, with its donated buffers.

    Args:
        text: the module before XLA optimises it.
    """
    from jaxlib._jax import mlir
    from jaxlib.mlir import ir

    with _as_stablehlo(text) as module:
        main = ir.SymbolTable(module.operation)["main"]
        donated = ir.DictAttr.get({"jax.buffer_donor": ir.BoolAttr.get(True)})
        others = ir.DictAttr.get({})
        donors = hlo_text.buffer_donors(text)
        count = len(ir.FunctionType(main.attributes["function_type"].value).inputs)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([donated if i in donors else others for i in range(count)])
        # An operation that StableHLO lacks becomes a custom call, which XLA converts back.
        return mlir.mhlo_to_stablehlo(module.operation.get_asm(binary=True, enable_debug_info=True))


@contextmanager
def _as_stablehlo(text: str) -> Iterator[Any]:
    """The module in its own MLIR context."""
    from jaxlib._jax import XlaComputation, hlo_module_from_text, mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mhlo
    from jaxlib.mlir.dialects import stablehlo as stablehlo_dialect

    computation = XlaComputation(hlo_module_from_text(text).as_serialized_hlo_module_proto())
    dialects = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(dialects)
    with ir.Context() as context:
        context.append_dialect_registry(dialects)
        stablehlo_dialect.register_dialect(context)
        chlo.register_dialect(context)
        mhlo.register_mhlo_dialect(context)
        yield ir.Module.parse(mlir.xla_computation_to_mlir_module(computation))


@contextmanager
def optimized_modules() -> Iterator[list[str]]:
    """Collects the optimised modules that XLA compiles inside the block; the list is filled when the block ends.

    It does not collect graphs that XLA has compiled before; inside `pyxla.hlo.dump.private_compilations` it does.
    """
    with _texts("*after_optimizations.txt") as modules:
        yield modules


@contextmanager
def thunk_sequences() -> Iterator[list[str]]:
    """Collects the final thunk sequence of each module that XLA:CUDA compiles inside the block, with its command
    buffers; the list is filled when the block ends. hlo_text.captured_calls reads a sequence.
    """
    with _texts("*thunk_sequence*.txt", final_thunks) as sequences:
        yield sequences


@contextmanager
def _texts(pattern: str, choose: Callable[[list[Path]], list[Path]] = list) -> Iterator[list[str]]:
    texts: list[str] = []
    with dumping() as folder:
        with written_files(folder, pattern) as files:
            yield texts
        texts.extend(path.read_text() for path in choose(files))
