"""The arguments and outputs of a new op, as its templates write them in C++, CUDA and Python."""

from __future__ import annotations

from dataclasses import dataclass

_CPP = {
    "int": "int64_t", "float": "double", "bool": "bool", "str": "std::string_view", "int[]": "std::vector<int64_t>",
    "float[]": "std::vector<double>", "int?": "std::optional<int64_t>", "float?": "std::optional<double>",
    "Tensor": "ffi::AnyBuffer", "Tensor?": "std::optional<ffi::AnyBuffer>",
}  # fmt: skip
_FFI = _CPP | {"int[]": "ffi::Span<const int64_t>", "float[]": "ffi::Span<const double>"}
# dtype -> its type in host code, and XLA's name.
_DTYPES = {
    "float32": ("float", "F32"), "bfloat16": ("pyxla::BF16", "BF16"), "float16": ("pyxla::F16", "F16"),
    "int64": ("int64_t", "S64"), "int32": ("int32_t", "S32"), "int8": ("int8_t", "S8"), "uint8": ("uint8_t", "U8"),
    "bool": ("bool", "PRED"),
}  # fmt: skip
FLOATS = ("float32", "bfloat16", "float16")
# An optional number that is left out counts as this: not as 0, which a caller may pass.
_ABSENT = 10


class _Written:
    """What templates write of a tensor argument and of an output alike."""

    number: int
    dtype: str | None

    @property
    def element(self) -> str:
        """The type of an element in host code."""
        return _DTYPES[self.dtype][0] if self.dtype else "T"

    @property
    def ffi_dtype(self) -> str | None:
        return ffi_dtype(self.dtype) if self.dtype else None

    @property
    def multiple(self) -> str:
        return multiple(self.number)


@dataclass(frozen=True)
class Tensor(_Written):
    """A tensor argument; `number` is its factor in the blend. A `dtype` of its own is not the first tensor's."""

    name: str
    mutated: bool
    optional: bool
    number: int
    dtype: str | None = None

    @property
    def host_value(self) -> str:
        is_float = self.dtype in (None, *FLOATS)
        return f"pyxla::ToFloat({self.name}[i])" if is_float else f"static_cast<float>({self.name}[i])"

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
class Output(_Written):
    """What the kernel writes: a tensor updated in place, or a result. `of` is the argument that it overwrites."""

    name: str
    number: int
    of: str | None = None
    dtype: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it has whole numbers, for which the stub writes 0."""
        return self.dtype not in (None, *FLOATS)

    @property
    def mutated(self) -> bool:
        return self.of == self.name


def multiple(number: int) -> str:
    """`3 * ` for 3, nothing for 1."""
    return f"{number} * " if number > 1 else ""


def ffi_dtype(name: str) -> str:
    """XLA's dtype in C++, such as ffi::F32 for float32."""
    return f"ffi::{_DTYPES[name][1]}"
