"""What the templates need for a new op: names, types and the stub's arithmetic, derived from the schema.

The meaning of the op is not known yet, so the stub computes something from every argument, the same in C++, CUDA and
Python: `blend`, the sum of the tensors, each times a different small number, and `factor`, a sum of the attributes
made in the same way. Output number k is k * factor * blend.
"""

from __future__ import annotations

from dataclasses import dataclass

from devtool.scaffold.schema import Argument, Schema
from devtool.scaffold.wrapped import Wrapped

_CPP = {
    "int": "int64_t", "float": "double", "bool": "bool", "str": "std::string_view", "int[]": "std::vector<int64_t>",
    "float[]": "std::vector<double>", "int?": "std::optional<int64_t>", "float?": "std::optional<double>",
    "Tensor": "ffi::AnyBuffer", "Tensor?": "std::optional<ffi::AnyBuffer>",
}  # fmt: skip
_FFI = _CPP | {"int[]": "ffi::Span<const int64_t>", "float[]": "ffi::Span<const double>"}
_PYTHON = {
    "Tensor": "torch.Tensor", "Tensor?": "torch.Tensor | None", "int[]": "list[int]", "float[]": "list[float]",
    "int?": "int | None", "float?": "float | None",
}  # fmt: skip
_TENSORS = ("Tensor", "Tensor?")
# An optional number that is left out counts as this: not as 0, which a caller may pass.
_ABSENT = 10


@dataclass(frozen=True)
class Tensor:
    """A tensor argument; `number` is its factor in the blend."""

    name: str
    mutated: bool
    optional: bool
    number: int

    @property
    def multiple(self) -> str:
        return multiple(self.number)

    @property
    def cpp_type(self) -> str:
        return _CPP["Tensor?" if self.optional else "Tensor"]

    @property
    def cpp_data(self) -> str:
        if self.optional:
            return f"{self.name} ? {self.name}->untyped_data() : nullptr"
        return f"{self.name}.untyped_data()"


@dataclass(frozen=True)
class Attribute:
    """An attribute; `number` is its factor in the sum of the attributes."""

    name: str
    kind: str
    number: int
    case_value: str
    other_value: str

    @property
    def multiple(self) -> str:
        return multiple(self.number)

    @property
    def cpp_type(self) -> str:
        return _CPP[self.kind]

    @property
    def ffi_type(self) -> str:
        return _FFI[self.kind]

    @property
    def cpp_member(self) -> str:
        return f"{{{self.name}.begin(), {self.name}.end()}}" if self.kind.endswith("[]") else self.name

    @property
    def cpp_value(self) -> str:
        suffix = {"str": ".size()"}.get(self.kind, f".value_or({_ABSENT})" if self.kind.endswith("?") else "")
        return f"params.{self.name}{suffix}"

    @property
    def python_value(self) -> str:
        if self.kind.endswith("?"):
            return f"({_ABSENT} if {self.name} is None else {self.name})"
        texts = {"str": "len({}.encode())", "int[]": "sum({})", "float[]": "sum({})"}
        return texts.get(self.kind, "{}").format(self.name)

    @property
    def text(self) -> str:
        if self.kind.endswith("?"):
            return f"({self.name}, {_ABSENT} if left out)"
        return {"str": "size of ", "int[]": "sum of ", "float[]": "sum of "}.get(self.kind, "") + self.name


@dataclass(frozen=True)
class Output:
    """What the kernel writes: a tensor updated in place, or a result. `of` is the argument that it overwrites."""

    name: str
    number: int
    of: str | None = None

    @property
    def multiple(self) -> str:
        return multiple(self.number)

    @property
    def mutated(self) -> bool:
        return self.of == self.name


class Op:
    """Everything that the templates need."""

    def __init__(self, name: str, schema: Schema, route: str = "cuda", wrapped: Wrapped | None = None):
        self.route = route
        self.wrapped = wrapped
        # Files to copy -> their names in the folder.
        self.copies = {wrapped.path: f"vendor/{wrapped.file}"} if wrapped else {}
        self.name = name
        self.schema = schema
        self.camel = "".join(part.capitalize() for part in name.split("_"))
        # Not the bare name: an op may have the name of a function in the C library.
        self.namespace = f"{name}_op"
        first = next(a.name for a in schema.arguments if a.kind == "Tensor")
        self.tensors = _tensors(schema, first)
        self.anchor = next(t for t in self.tensors if t.name == first)
        self.others = [t for t in self.tensors if t.name != first]
        attributes = [a for a in schema.arguments if a.kind not in _TENSORS]
        # The sum starts with the first attribute if it is a plain number, else with 1.
        self.starts_with_attribute = bool(attributes) and attributes[0].kind in ("int", "float")
        self.attributes = [
            Attribute(a.name, a.kind, place + (not self.starts_with_attribute), *_values(a, place))
            for place, a in enumerate(attributes, 1)
        ]
        self.absent = [a.name for a in schema.arguments if a.kind.endswith("?")]
        self._name_outputs(schema)

    def _name_outputs(self, schema: Schema) -> None:
        taken = {argument.name for argument in schema.arguments}

        def free(wanted: str) -> str:
            while wanted in taken:
                wanted += "_"
            taken.add(wanted)
            return wanted

        mutated = [t.name for t in self.tensors if t.mutated]
        # A name of the schema's own is no argument's; it is taken before the made ones.
        taken |= set(schema.results)
        count = len(schema.results)
        names = [name or free("out" if count == 1 else f"out_{i}") for i, name in enumerate(schema.results)]
        self.results = [Output(name, len(mutated) + i) for i, name in enumerate(names, 1)]
        self.outputs = [Output(name, i, of=name) for i, name in enumerate(mutated, 1)] + self.results
        self.ffi_results = [Output(free(f"new_{name}"), 0, of=name) for name in mutated] + self.results

    @property
    def headers(self) -> list[str]:
        kinds = " ".join(attribute.cpp_type for attribute in self.attributes)
        return [header for header in ("optional", "string_view", "vector") if header in kinds]

    @property
    def blend_text(self) -> str:
        parts = [f"{t.multiple}{t.name}[i]" for t in (self.anchor, *self.others)]
        return " + ".join(parts)

    @property
    def factor_start(self) -> str:
        return f"static_cast<double>({self.attributes[0].cpp_value})" if self.starts_with_attribute else "1"

    @property
    def added_attributes(self) -> list[Attribute]:
        return self.attributes[self.starts_with_attribute :]

    @property
    def factor_text(self) -> str:
        return self._factor([a.text for a in self.attributes])

    @property
    def factor_python(self) -> str:
        return self._factor([a.python_value for a in self.attributes])

    def _factor(self, values: list[str]) -> str:
        if not values:
            return "2"
        terms = [f"{a.multiple}{value}" for a, value in zip(self.attributes, values, strict=True)]
        return " + ".join(terms if self.starts_with_attribute else ["1", *terms])

    @property
    def decorator_options(self) -> str:
        mutated = [t.name for t in self.tensors if t.mutated]
        lists = {"mutates": mutated, "results": [name for name in self.schema.results if name]}
        options = [f"{key}=[{', '.join(map(_literal, names))}]" for key, names in lists.items() if names]
        return f"({', '.join(options)})" if options else ""

    @property
    def python_parameters(self) -> str:
        return ", ".join(
            f"{a.name}: {_PYTHON.get(a.kind, a.kind)}" + (f" = {_literal(a.default)}" if a.has_default else "")
            for a in self.schema.arguments
        )

    @property
    def python_result(self) -> str:
        count = len(self.schema.results)
        if count == 1:
            return "torch.Tensor"
        return f"tuple[{', '.join(['torch.Tensor'] * count)}]" if count else "None"

    @property
    def argument_docs(self) -> list[str]:
        """A line of the docstring for each argument."""
        docs = {t.name: f"as {self.anchor.name}" for t in self.others}
        docs[self.anchor.name] = "any shape; float32, bfloat16 or float16"
        docs |= {t.name: docs[t.name] + "; updated in place" for t in self.tensors if t.mutated}
        docs |= {t.name: docs[t.name] + "; None leaves it out" for t in self.tensors if t.optional}
        return [f"{a.name}: {docs.get(a.name, 'replace: its meaning and unit')}" for a in self.schema.arguments]

    @property
    def returns_docs(self) -> list[str]:
        """The lines of the docstring about the results: one for each that has a name."""
        if not self.results:
            return ["Nothing."]
        named = [f"{name}: as {self.anchor.name}; replace: its meaning." for name in self.schema.results if name]
        count = len(self.results)
        return named or [f"As {self.anchor.name}, {'one tensor' if count == 1 else f'{count} tensors'}."]


def multiple(number: int) -> str:
    """`3 * ` for 3, nothing for 1."""
    return f"{number} * " if number > 1 else ""


def _tensors(schema: Schema, first: str) -> list[Tensor]:
    tensors, number = [], 1
    for argument in schema.arguments:
        if argument.kind in _TENSORS:
            number += argument.name != first
            own = 1 if argument.name == first else number
            tensors.append(Tensor(argument.name, argument.mutated, argument.kind == "Tensor?", own))
    return tensors


def _values(argument: Argument, place: int) -> tuple[str, str]:
    """Two values for the cases, neither of them the default."""
    if argument.kind == "bool":
        return repr(not argument.default), repr(bool(argument.default))
    if argument.kind == "str":
        return '"' + "abc" * place + '"', '""'
    if argument.kind.endswith("[]"):
        element = place if argument.kind == "int[]" else place + 0.5
        return f"[{element}, {element + 1}]", "[]"
    value, other = (place + 2, -place) if argument.kind.startswith("int") else (place + 0.75, -place - 0.5)
    if argument.kind.endswith("?"):
        other = type(other)(0)
    return repr(value + (value == argument.default)), repr(other - (other == argument.default))


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
