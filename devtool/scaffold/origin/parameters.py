"""What the parameters of a launch function or kernel are for: tensors, results, sizes, attributes.

What follows from the code is certain; what follows from a name is a guess, and a note says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from devtool.scaffold.names import argument_problem
from devtool.scaffold.origin.refusals import refused, schema_refused
from devtool.scaffold.schema import Argument, Schema

# Member of Params -> the names of parameters that are taken for it, and what a note says.
_SIZES = {
    "element_count": (
        "n size count numel n_elements num_elements element_count", "the number of elements of the first tensor",
    ),
    "row_count": (
        "m rows n_rows num_rows row_count num_tokens",
        "the number of rows of the first tensor (all its dimensions but the last)",
    ),
    "column_count": (
        "cols n_cols num_cols columns column_count dim hidden_size", "the last dimension of the first tensor",
    ),
    "1": ("", "a stride of 1"),
}  # fmt: skip
_STRIDE = re.compile(r"(^|_)stride(_|$)")
_OUTPUT = re.compile(r"(^|_)(out|output|dst|result|y)(_|$)")
_IN_PLACE = re.compile(r"(^|_)(inout|cache|state)(_|$)")


@dataclass(frozen=True)
class Parameter:
    """A parameter as the code has it.

    Attributes:
        name: as written.
        line: of the file.
        kind: Tensor, int, float or bool.
        is_read, is_written: of a pointer; None: the code does not tell.
        has_default, default: of a number.
        dtype: of a pointer; None if the code does not fix it.
        written: the type as written, for a conversion.
    """

    name: str
    line: int
    kind: str
    is_read: bool | None = True
    is_written: bool | None = False
    has_default: bool = False
    default: Any = None
    dtype: str | None = None
    written: str = ""


@dataclass(frozen=True)
class Binding:
    """What a parameter gets: an argument of the schema, the result of a number, or a size of the first tensor."""

    parameter: Parameter
    argument: str | None = None
    result: int | None = None
    size: str | None = None


def argument_name(parameter: Parameter, taken: set[str]) -> str:
    """The name for the schema: in lower case, without what marks a pointer; free, and added to `taken`."""
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", parameter.name).lower()
    if parameter.kind == "Tensor":
        name = re.sub(r"^d_(?=[a-z])|_ptr$", "", name)
    name = re.sub(r"__+", "_", name).lstrip("_") or "x"
    while argument_problem(name) or name in taken:
        # C++ reserves names with two underscores.
        name += "x" if name.endswith("_") else "_"
    taken.add(name)
    return name


def sizes_of(parameters: Sequence[Parameter]) -> dict[str, str]:
    """Name as written -> the member of Params, for each integer whose name says that it is a size.

    Together they stay inside the first tensor: beside a stride, a row or a column size, `n` is the other dimension.
    """
    names = {p.name: argument_name(p, set()).rstrip("_") for p in parameters if p.kind == "int"}
    sizes = {
        written: size for written, name in names.items() for size, (known, _) in _SIZES.items() if name in known.split()
    }
    strides = {
        written: "column_count" if name.endswith("stride") or "row" in name else "1"
        for written, name in names.items()
        if _STRIDE.search(name)
    }
    if strides or {"row_count", "column_count"} & {*sizes.values()}:
        other = "row_count" if "column_count" in sizes.values() else "column_count"
        sizes = {written: other if size == "element_count" else size for written, size in sizes.items()}
    return sizes | strides


def derive(parameters: Sequence[Parameter]) -> tuple[Schema, tuple[Binding, ...], list[str]]:
    """The schema that parameters suggest, what each of them gets, and notes on what is a guess.

    The caller refuses a schema that is no op's (require_op).
    """
    sizes, taken, notes = sizes_of(parameters), set(), []
    pointers = [p for p in parameters if p.kind == "Tensor"]
    reads = any(p.is_read and not p.is_written for p in pointers)
    arguments, results, bindings = [], [], []
    for parameter in parameters:
        if parameter.name in sizes:
            bindings.append(Binding(parameter, size=sizes[parameter.name]))
            continue
        name = argument_name(parameter, taken)
        use = _use(parameter, name, reads) if parameter.kind == "Tensor" else "argument"
        if use == "result":
            bindings.append(Binding(parameter, result=len(results)))
            results.append(name)
            if parameter.is_read is None:
                notes.append(
                    f"{parameter.name} is taken for a result; if the code reads it too, it is Tensor(a!) {name}"
                )
            continue
        in_place = use == "in place"
        if in_place and parameter.is_read is None:
            notes.append(f"{parameter.name} is taken for a tensor that is updated in place; it may be a result")
        if parameter.kind == "int":
            notes.append(f"{parameter.name} is taken for an attribute; a size comes from a tensor's shape instead")
        default = (parameter.has_default, parameter.default)
        arguments.append(Argument(name, parameter.kind, in_place, *default))
        bindings.append(Binding(parameter, argument=name))
    # The names of several results tell them apart; one alone needs none.
    names = tuple(results) if len(results) > 1 else ("",) * len(results)
    return Schema(tuple(arguments), names), tuple(bindings), notes + _size_notes(bindings)


def require_op(schema: Schema, where: str, tensor: str, output: str, got: str) -> None:
    """Raises DevtoolError if a derived schema has no tensor, or nothing that is written.

    Args:
        where: the place in the user's code.
        tensor, output, got: what was expected in these cases and what was found, in the words of the user's language.
    """
    hint = "or pass SCHEMA with the parameters' names"
    if not any(argument.kind == "Tensor" for argument in schema.arguments):
        raise refused(where, tensor, got, hint)
    if not schema.results and not any(argument.mutated for argument in schema.arguments):
        raise refused(where, output, got, hint)


def _size_notes(bindings: Sequence[Binding]) -> list[str]:
    notes = []
    for size, (_, text) in _SIZES.items():
        names = [binding.parameter.name for binding in bindings if binding.size == size]
        if names:
            notes.append(f"{', '.join(names)}: taken for {text}")
    return notes


def _use(parameter: Parameter, name: str, others_are_read: bool) -> str:
    if not parameter.is_written:
        return "argument"
    if parameter.is_read is not None:
        return "in place" if parameter.is_read else "result"
    if _IN_PLACE.search(name):
        return "in place"
    return "result" if others_are_read or _OUTPUT.search(name) else "in place"


def match(parameters: Sequence[Parameter], schema: Schema, where: str) -> tuple[tuple[Binding, ...], list[str]]:
    """What each parameter gets under the user's schema, by the arguments' names, and notes.

    Args:
        where: the place of the function, for a message.

    Raises:
        DevtoolError: names, number or kinds differ.
    """
    sizes, bindings, results = sizes_of(parameters), [], 0
    # An integer of any other name.
    other = "column_count" if {"row_count", "column_count"} & {*sizes.values()} else "element_count"
    wanted = {argument.name: argument for argument in schema.arguments}
    for parameter in parameters:
        name = next((n for n in (parameter.name, argument_name(parameter, set())) if n in wanted), None)
        if name is not None:
            argument = wanted.pop(name)
            kind = argument.kind.removesuffix("?") if parameter.kind == "Tensor" else argument.kind
            is_certain = parameter.is_read is not None and parameter.kind == "Tensor"
            if kind != parameter.kind or (is_certain and argument.mutated != parameter.is_written):
                got = "Tensor(a!)" if argument.mutated else argument.kind
                wanted_kind = "Tensor(a!)" if parameter.is_written else parameter.kind
                hint = f"{where}: line {parameter.line} has it so"
                raise schema_refused(f"{wanted_kind} {name}", f"{got} {name}", hint)
            bindings.append(Binding(parameter, argument=name))
        elif parameter.kind == "Tensor" and parameter.is_written and not parameter.is_read:
            bindings.append(Binding(parameter, result=results))
            results += 1
        elif parameter.kind == "int":
            bindings.append(Binding(parameter, size=sizes.get(parameter.name, other)))
        else:
            wanted_kind = "Tensor(a!)" if parameter.is_written else parameter.kind
            hint = f"{where}: line {parameter.line} has it"
            raise schema_refused(f"{wanted_kind} {argument_name(parameter, set())}", "none", hint)
    if wanted:
        known = ", ".join(argument_name(parameter, set()) for parameter in parameters)
        raise schema_refused(f"arguments among {known}", next(iter(wanted)), f"name each as {where} does")
    if results != len(schema.results):
        left = [b.parameter.name for b in bindings if b.result is not None]
        text = f"{results} result{'s' * (results != 1)} ({', '.join(left) or 'no pointer is left'})"
        raise schema_refused(text, len(schema.results), f"{where}: each pointer that is no argument is a result")
    return tuple(bindings), _size_notes(bindings)
