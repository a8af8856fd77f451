"""One custom call as a StableHLO module, and the XLA computation made from it.

Why not torch_xla's `_xla_custom_call`: its cache key has the target's name and the operands, but not the attributes and
result shapes, so a second call with other attributes returns the first call's result. The hash of a user computation
covers the whole module, and only a module can state layouts, aliasing and typed attributes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pyxla.errors import ArgumentError, mismatch
from pyxla.op.dtypes import BY_NAME, DTYPES, dtype_name

# An absent `Tensor?`: pyxla/include/pyxla/ffi/ffi.h reads it as std::nullopt.
ABSENT = "tensor<0xi1>"


@dataclass(frozen=True)
class CustomCall:
    """Everything that XLA sees of one call: `stablehlo.custom_call`, typed FFI.

    Attributes:
        target: the registered name, <namespace>_<op>.
        operands: MLIR types in schema order; None for an optional tensor that is absent.
        results: MLIR types; the results of in-place arguments come first.
        attributes: name -> MLIR attribute, as `attribute` makes it.
        aliases: (result, operand) pairs that share a buffer.
        workspace: bytes of a last result that nobody reads, so that XLA plans it as temporary memory; None: none.
    """

    target: str
    operands: tuple[str | None, ...]
    results: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    aliases: tuple[tuple[int, int], ...] = ()
    workspace: int | None = None

    def module(self) -> str:
        """The module's text. `@main` takes the operands that are present and returns the results."""
        outputs = [*self.results, *([] if self.workspace is None else [f"tensor<{self.workspace}xui8>"])]
        single = len(outputs) == 1
        # torch_xla takes the device from a computation's first input, so there must be one.
        parameters = [f"%a{i}: {kind}" for i, kind in enumerate(self.operands) if kind] or ["%unused: tensor<i1>"]
        absent = [f"%a{i} = stablehlo.constant dense<> : {ABSENT}" for i, kind in enumerate(self.operands) if not kind]
        operands = [kind or ABSENT for kind in self.operands]
        aliases = [
            f"#stablehlo.output_operand_alias<output_tuple_indices = [{'' if single else result}], "
            f"operand_index = {operand}, operand_tuple_indices = []>"
            for result, operand in self.aliases
        ]
        return f"""module @custom_call {{
  func.func @main({_list(parameters)}) -> ({_list(self.results)}) {{
    {_lines(absent)}
    %r{"" if single else f":{len(outputs)}"} = stablehlo.custom_call @{self.target}({_list(f"%a{i}" for i in range(len(operands)))}) {{
      api_version = 4 : i32,
      backend_config = {{{_list(f"{name} = {value}" for name, value in self.attributes)}}},
      operand_layouts = [{_list(map(_row_major, operands))}],
      result_layouts = [{_list(map(_row_major, outputs))}],
      output_operand_aliases = [{_list(aliases)}]
    }} : ({_list(operands)}) -> ({_list(outputs)})
    return {"%r" if single else _list(f"%r#{i}" for i in range(len(self.results)))} : {_list(self.results)}
  }}
}}
"""  # noqa: E501 - broken lines would hide the module's form

    def computation(self) -> Any:
        """The module as an XLA computation for `_XLAC._xla_user_computation`."""
        return as_computation(self.target, self.module())


def as_computation(name: str, module: str) -> Any:
    """The text of a StableHLO module as an XLA computation for `_XLAC._xla_user_computation`."""
    from jaxlib._jax import mlir
    from torch_xla.core import xla_builder

    proto = mlir.mlir_module_to_xla_computation(module, False, False).as_serialized_hlo_module_proto()
    return xla_builder.computation_from_module_proto(name, proto)


def tensor_type(op: str, argument: str, tensor: torch.Tensor) -> str:
    """The MLIR type of a tensor: `tensor<2x3xf32>`.

    Raises:
        ArgumentError: XLA has no such dtype.
    """
    if tensor.dtype not in DTYPES:
        names = ", ".join(BY_NAME)
        raise ArgumentError(mismatch(op, argument, f"a dtype of XLA ({names})", dtype_name(tensor.dtype)))
    return "tensor<" + "".join(f"{dim}x" for dim in tensor.shape) + DTYPES[tensor.dtype].mlir + ">"


def attribute(kind: str, value: Any) -> str:
    """A Python value as an MLIR attribute.

    int -> i64, float -> f64, bool -> i1, str -> string, int[] and float[] -> dense elements. An optional scalar
    (`int?`, `float?`) is a list of no or one element, so that it keeps its name when it is None. Floats are written as
    bits, so that NaN, infinities and signed zeros arrive unchanged.
    """
    if kind in ("int?", "float?"):
        return attribute(f"{kind[:-1]}[]", [] if value is None else [value])
    if kind == "int":
        return f"{int(value)} : i64"
    if kind == "float":
        return f"{_float_bits(value)} : f64"
    if kind == "bool":
        return "true" if value else "false"
    if kind == "str":
        return (
            '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in value.encode()) + '"'
        )
    element, items = ("i64", map(str, map(int, value))) if kind == "int[]" else ("f64", map(_float_bits, value))
    # Not `array<i64: 1, 2>`: a handler gets the same from both, and portable StableHLO has no such arrays.
    return f"dense<[{', '.join(items)}]> : tensor<{len(value)}x{element}>"


def _list(items: Iterable[str]) -> str:
    return ", ".join(items)


def _lines(items: Iterable[str]) -> str:
    return "\n    ".join(items)


def _float_bits(value: float) -> str:
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _row_major(kind: str) -> str:
    rank = kind.count("x")
    order = ", ".join(str(dim) for dim in reversed(range(rank)))
    return f"dense<[{order}]> : tensor<{rank}xindex>" if rank else "dense<> : tensor<0xindex>"


def attributes(kinds: Mapping[str, str], values: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """The attributes of a call, sorted by name, from the schema's kinds and the values in the same order."""
    return tuple(
        sorted((name, attribute(kind, value)) for (name, kind), value in zip(kinds.items(), values, strict=True))
    )
