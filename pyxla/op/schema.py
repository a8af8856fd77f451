"""The schema of an op: what torch infers from the reference's annotations, sorted into operands and attributes."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pyxla.errors import DefinitionError, mismatch

TENSOR_KINDS = ("Tensor", "Tensor?")
ATTRIBUTE_KINDS = ("int", "int?", "float", "float?", "bool", "str", "int[]", "float[]")

_DEFAULTS = "strings without quotes, backslashes and line ends; numbers that are finite and not subnormal"


@dataclass(frozen=True)
class Argument:
    """One argument of an op: `index` is its position in the schema, `kind` its type there, without alias marks."""

    index: int
    name: str
    kind: str
    mutated: bool


class Schema:
    """The schema of an op.

    Attributes:
        text: as torch writes it, without the op's name: `(Tensor x, float eps=1e-06) -> Tensor`.
        arguments: all arguments in order.
        tensors, attributes, mutated: the arguments of each sort, in order.
        result_count: the number of results of its custom call, including the mutated arguments.
        result_names: the names of the results that the op returns, or "result 0", "result 1"; "result" if it is alone.
        named_results: these names as the author gave them; empty if there are none.
        device: the `Device` argument of an op without tensors, or None.
        defaults: name -> default value.
    """

    def __init__(self, name: str, text: str):
        self.text = text
        try:
            parsed = torch._C.parse_schema(f"xla_gpu::{name}{text}")
        except (IndexError, RuntimeError) as error:  # IndexError: a number too large or too small for std::stod
            raise DefinitionError(
                mismatch(name, "schema", "defaults that torch's schemas can hold", text), _DEFAULTS
            ) from error
        kinds = [_kind(argument) for argument in parsed.arguments]
        self.arguments = tuple(
            Argument(i, a.name, kind, bool(a.alias_info and a.alias_info.is_write))
            for i, (a, kind) in enumerate(zip(parsed.arguments, kinds, strict=True))
        )
        self.defaults = {a.name: a.default_value for a in parsed.arguments if a.has_default_value()}
        self._default_values = tuple(self.defaults.get(a.name) for a in self.arguments)
        self.tensors = tuple(a for a in self.arguments if a.kind in TENSOR_KINDS)
        self.attributes = tuple(a for a in self.arguments if a.kind in ATTRIBUTE_KINDS)
        self.mutated = tuple(a for a in self.tensors if a.mutated)
        devices = [a for a in self.arguments if a.kind == "Device"]
        self.device = devices[0] if devices else None
        self._returns = [str(r.type) for r in parsed.returns]
        self.named_results = tuple(r.name for r in parsed.returns if r.name)
        numbered = len(parsed.returns) > 1
        self.result_names = [r.name or (f"result {i}" if numbered else "result") for i, r in enumerate(parsed.returns)]
        self.result_count = len(self.mutated) + len(self._returns)
        self._check(name)

    @classmethod
    def infer(cls, function: Callable, mutates: tuple[str, ...], results: tuple[str, ...] = ()) -> Schema:
        """The schema of a typed function, whose results get these names.

        Raises:
            DefinitionError: an annotation is missing, or a custom call cannot have this type.
        """
        try:
            text = torch.library.infer_schema(function, mutates_args=mutates)
        except ValueError as error:
            raise DefinitionError(
                mismatch(function.__name__, "signature", "annotations that torch.library accepts", error)
            ) from error
        # Attributes are constants in the HLO; SymInt would allow symbolic values.
        schema = cls(function.__name__, re.sub(r"\bSymInt\b", "int", text))
        if results:
            schema = cls(function.__name__, schema._text_with(function.__name__, results))
        for name, parameter in inspect.signature(function).parameters.items():
            if name in schema.defaults and schema.defaults[name] != parameter.default:  # a backslash in a string
                got = repr(parameter.default)
                raise DefinitionError(
                    mismatch(function.__name__, name, "a default that torch's schemas can hold", got), _DEFAULTS
                )
        return schema

    def bind(self, args: tuple, kwargs: dict[str, Any]) -> tuple:
        """All arguments in order, including the defaults, which torch's dispatcher leaves out."""
        if not kwargs:
            return args + self._default_values[len(args) :]
        values = self.defaults | kwargs
        return args + tuple(values[argument.name] for argument in self.arguments[len(args) :])

    def accepts(self, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Whether these arguments match the schema: none is missing, given twice, or unknown."""
        names = [argument.name for argument in self.arguments]
        given = [*names[: len(args)], *kwargs]
        unique = set(given)
        return len(args) <= len(names) and len(unique) == len(given) and unique | self.defaults.keys() == set(names)

    @staticmethod
    def functional_name(name: str) -> str:
        """Name of the functional twin of an op that mutates; the implementation's name stays after the dot."""
        op, dot, implementation = name.partition(".")
        return f"{op}_functional{dot}{implementation}"

    def functional_text(self) -> str:
        """The schema of the functional twin: it mutates nothing and returns the new values before the other results."""
        arguments = re.sub(r"Tensor\(\w+!\)", "Tensor", self.text.rpartition(" -> ")[0])
        own = [f"Tensor {name}" for name in self.named_results] or ["Tensor"] * len(self._returns)
        return f"{arguments} -> {_returns_text(['Tensor'] * len(self.mutated) + own)}"

    def _text_with(self, op: str, names: tuple[str, ...]) -> str:
        """The schema's text with these names of the results."""
        if len(names) != len(self._returns):
            expected = f"a name for each of {len(self._returns)} results"
            raise DefinitionError(mismatch(op, "results", expected, ", ".join(names)), "results=[...] of custom_op")
        taken = [argument.name for argument in self.arguments]
        for i, name in enumerate(names):
            if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or name in (*taken, *names[:i]):
                raise DefinitionError(
                    mismatch(op, "results", "names of their own, as Python writes names", repr(name)),
                    "another name: no keyword, and none that an argument or another result has",
                )
        arguments = self.text.rpartition(" -> ")[0]
        return f"{arguments} -> {_returns_text([f'Tensor {name}' for name in names])}"

    def _check(self, name: str) -> None:
        for argument in self.arguments:
            if argument.kind not in (*TENSOR_KINDS, *ATTRIBUTE_KINDS, "Device"):
                kinds = ", ".join((*TENSOR_KINDS, *ATTRIBUTE_KINDS))
                raise DefinitionError(mismatch(name, argument.name, f"one of {kinds}", argument.kind))
            if argument.mutated and argument.kind != "Tensor":
                raise DefinitionError(
                    mismatch(name, argument.name, "a Tensor that is always there, as it is mutated", argument.kind)
                )
        if any(kind != "Tensor" for kind in self._returns):
            raise DefinitionError(mismatch(name, "results", "Tensors", ", ".join(self._returns)))
        if not self._returns and not self.mutated:
            raise DefinitionError(mismatch(name, "results", "a Tensor or an argument in `mutates`", "neither"))
        if not any(a.kind == "Tensor" for a in self.arguments) and self.device is None:
            hint = "add `device: torch.device` so that a call says where it runs"
            raise DefinitionError(mismatch(name, "arguments", "a Tensor or a torch.device", "neither"), hint)


def _returns_text(results: list[str]) -> str:
    return results[0] if len(results) == 1 else f"({', '.join(results)})"


def _kind(argument: Any) -> str:
    text = str(argument.type)
    optional = re.fullmatch(r"Optional\[(.*)\]", text)
    listed = re.fullmatch(r"List\[(.*)\]", text)
    return f"{optional[1]}?" if optional else f"{listed[1]}[]" if listed else text
