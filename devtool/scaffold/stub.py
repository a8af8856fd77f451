"""What the templates need for a new op: names, types and the stub's arithmetic, derived from the schema.

The meaning of the op is not known yet, so the stub computes something from every argument, the same in C++, CUDA and
Python: `blend`, the sum of the tensors, each times a different small number, and `factor`, a sum of the attributes
made in the same way. Output number k is k * factor * blend; one of whole numbers is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from devtool.scaffold.operands import FLOATS, Attribute, Output, Tensor, ffi_dtype
from devtool.scaffold.origin.origin import Origin
from devtool.scaffold.origin.parameters import Binding
from devtool.scaffold.schema import Argument, Schema
from devtool.scaffold.wrapped import Wrapped

_PYTHON = {
    "Tensor": "torch.Tensor", "Tensor?": "torch.Tensor | None", "int[]": "list[int]", "float[]": "list[float]",
    "int?": "int | None", "float?": "float | None",
}  # fmt: skip
_TENSORS = ("Tensor", "Tensor?")
_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class Op:
    """Everything that the templates need."""

    def __init__(
        self,
        name: str,
        schema: Schema,
        route: str = "cuda",
        wrapped: Wrapped | None = None,
        origin: Origin | None = None,
    ):
        self.route = route
        self.wrapped = wrapped
        self.origin = origin
        # The folder of templates that take the place of the route's.
        self.templates = (origin.templates,) if origin else ()
        # Files to copy -> their names in the folder.
        self.copies: dict[Path, str] = {wrapped.path: f"vendor/{wrapped.file}"} if wrapped else {}
        self.copies |= origin.copies if origin else {}
        # Of the first tensor.
        self.dtypes = origin.anchor_dtypes if origin else FLOATS
        # Members of Params for sizes, besides element_count.
        self.sizes = origin.sizes if origin else []
        dtypes: Mapping[str | int, str] = origin.dtypes if origin else {}
        self.name = name
        self.schema = schema
        self.camel = "".join(part.capitalize() for part in name.split("_"))
        # Not the bare name: an op may have the name of a function in the C library.
        self.namespace = f"{name}_op"
        first = next(a.name for a in schema.arguments if a.kind == "Tensor")
        self.tensors = _tensors(schema, first, dtypes)
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
        self._name_outputs(schema, dtypes)

    def _name_outputs(self, schema: Schema, dtypes: Mapping[str | int, str]) -> None:
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
        self.results = [Output(name, len(mutated) + i, dtype=dtypes.get(i - 1)) for i, name in enumerate(names, 1)]
        self.outputs = [Output(n, i, n, dtypes.get(n)) for i, n in enumerate(mutated, 1)] + self.results
        self.ffi_results = [Output(free(f"new_{n}"), 0, n, dtypes.get(n)) for n in mutated] + self.results

    @property
    def torch_dtypes(self) -> str:
        """The first tensor's dtypes, as a tuple in Python."""
        names = ", ".join(f"torch.{dtype}" for dtype in self.dtypes)
        return f"({names},)" if len(self.dtypes) == 1 else f"({names})"

    @property
    def ffi_dtypes(self) -> str:
        return "{" + ", ".join(ffi_dtype(dtype) for dtype in self.dtypes) + "}"

    @property
    def short_dtypes(self) -> list[str]:
        return [_SHORT[dtype] for dtype in self.dtypes]

    @property
    def bench_dtypes(self) -> list[tuple[str, str]]:
        """The dtype of the benches on CUDA and on the CPU, each with its short name."""
        names = self.dtypes * 2 if len(self.dtypes) == 1 else ("bfloat16", "float32")
        return [(_SHORT[name], name) for name in names]

    def wrong_dtype(self, tensor: Tensor) -> str:
        """A dtype that is not the tensor's, for a bad input."""
        return "float32" if (tensor.dtype or self.dtypes[0]) == "float16" else "float16"

    @property
    def cuda_arguments(self) -> list[str]:
        """What the launch function or kernel of the origin gets."""
        code = self.origin.code
        arguments = [self._converted(binding) for binding in code.bindings]
        if code.stream is not None:
            arguments.insert(code.stream, "stream")
        return arguments

    def _converted(self, binding: Binding) -> str:
        value, type_ = self._member(binding), binding.parameter.written
        mutated = [tensor.name for tensor in self.tensors if tensor.mutated]
        if (
            binding.argument
            and type_.endswith("*")
            and not type_.startswith("const ")
            and binding.argument not in mutated
        ):
            value = f"const_cast<void*>({value})"
        return value if type_ in ("int64_t", "double", "bool") else f"static_cast<{type_}>({value})"

    @property
    def triton_arguments(self) -> list[str]:
        """What the launch function of the origin's Triton kernel gets."""
        texts = {True: "{{{}, dtype}}", False: "{}"}
        return [texts[b.parameter.kind == "Tensor"].format(self._member(b)) for b in self.origin.bindings]

    def _member(self, binding: Binding) -> str:
        if binding.size == "1":
            return "1"
        result = None if binding.result is None else self.results[binding.result].name
        return f"params.{binding.argument or result or binding.size}"

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
        docs |= {t.name: f"{docs[t.name]}, of {t.dtype}" for t in self.others if t.dtype}
        *most, last = self.dtypes
        docs[self.anchor.name] = f"any shape; {', '.join(most)}{' or ' if most else ''}{last}"
        docs |= {t.name: docs[t.name] + "; updated in place" for t in self.tensors if t.mutated}
        docs |= {t.name: docs[t.name] + "; None leaves it out" for t in self.tensors if t.optional}
        return [f"{a.name}: {docs.get(a.name, 'replace: its meaning and unit')}" for a in self.schema.arguments]

    @property
    def returns_docs(self) -> list[str]:
        """The lines of the docstring about the results: one for each that has a name."""
        if not self.results:
            return ["Nothing."]
        named = [
            f"{r.name}: as {self.anchor.name}{f', of {r.dtype}' if r.dtype else ''}; replace: its meaning."
            for r, name in zip(self.results, self.schema.results, strict=True)
            if name
        ]
        count = len(self.results)
        return named or [f"As {self.anchor.name}, {'one tensor' if count == 1 else f'{count} tensors'}."]


def _tensors(schema: Schema, first: str, dtypes: Mapping[str | int, str]) -> list[Tensor]:
    tensors, number = [], 1
    for argument in schema.arguments:
        if argument.kind in _TENSORS:
            number += argument.name != first
            own = 1 if argument.name == first else number
            tensors.append(
                Tensor(argument.name, argument.mutated, argument.kind == "Tensor?", own, dtypes.get(argument.name))
            )
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
