"""A CUDA launch function or kernel becomes an op: `const T*` its tensors, `T*` its results, numbers its attributes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devtool.scaffold.origin.cuda_file import CppFunction, CppParameter, CudaFile, read_cuda
from devtool.scaffold.origin.origin import Origin
from devtool.scaffold.origin.parameters import Binding, Parameter, derive, match, require_op
from devtool.scaffold.origin.refusals import refused
from devtool.scaffold.origin.selection import select
from devtool.scaffold.schema import Schema

_OUTCOME = (
    "Host code and reference are stubs, so the test passes on the CPU; on a GPU it fails until the reference says what "
    "the CUDA code computes."
)
# C++'s type of what a pointer points to -> dtype; None: any.
_DTYPES = {
    **dict.fromkeys(("float", "float2", "float4"), "float32"),
    **dict.fromkeys(("half", "__half", "half2", "__half2"), "float16"),
    **dict.fromkeys(("__nv_bfloat16", "nv_bfloat16", "__nv_bfloat162", "nv_bfloat162"), "bfloat16"),
    **dict.fromkeys(("int", "int32_t", "std::int32_t"), "int32"),
    **dict.fromkeys(("int64_t", "std::int64_t", "long long", "long", "long long int", "long int"), "int64"),
    **dict.fromkeys(("uint8_t", "unsigned char", "std::uint8_t"), "uint8"),
    **dict.fromkeys(("int8_t", "signed char", "char", "std::int8_t"), "int8"),
    "bool": "bool", "void": None,
}  # fmt: skip
_FLOATS = ("float32", "float16", "bfloat16")
_INTEGER = re.compile(
    r"(std::)?(u?int(8|16|32|64)?_t|int|size_t|ptrdiff_t|((un)?signed ?)?((short|long|long long)?( int)?))"
)
_NUMBERS = {"float": "float", "double": "float", "bool": "bool"}
_STREAMS = ("cudaStream_t", "CUstream")
_TORCH = ("torch::Tensor", "at::Tensor", "Tensor")
_EXAMPLE = "void launch(const float* x, float* out, int n, cudaStream_t stream)"
_NAME = re.compile(r"\w[\w.+-]*", re.ASCII)
_TYPES = "a pointer to float, __half, __nv_bfloat16, a template's type or an integer, a number, or cudaStream_t"


@dataclass(frozen=True)
class CudaCall:
    """What the template of the .cu needs.

    Attributes:
        file: the copy's name in the folder.
        function: "::ns::launch<float>".
        is_kernel: whether the launch is still to be written.
        returns_status: whether the function returns cudaError_t.
        stream: the place of the stream among the arguments; None without one.
        bindings: what the others get, in order.
        notes: what to decide about the launch.
    """

    file: str
    function: str
    is_kernel: bool
    returns_status: bool
    stream: int | None
    bindings: tuple[Binding, ...]
    notes: tuple[str, ...]

    @property
    def has_size(self) -> bool:
        return any(binding.size for binding in self.bindings)


def read_launch(path: Path, symbols: Sequence[str], op: str, schema: Schema | None) -> Origin:
    """Reads a launch function or a kernel of a CUDA file.

    Args:
        symbols: the function's name; none if the file has one that no other calls.
        op: the name of the op.
        schema: the user's, which wins; None takes that of the parameters.

    Raises:
        DevtoolError: no such function, or it cannot become an op with this schema.
    """
    if not _NAME.fullmatch(path.name):
        raise refused(str(path), "a file name of letters, digits and _ . + -", path.name, "copy it to another name")
    file = read_cuda(path)
    function = _select(file, symbols)
    where = f"{path}:{function.line}: {function.name}"
    _check_file(file, function, where)
    stream, parameters = None, []
    for place, parameter in enumerate(function.parameters):
        if parameter.type in _STREAMS and not parameter.pointers:
            stream = place
        else:
            parameters.append(_parameter(parameter, place, function, f"{path}:{parameter.line}: {function.name}"))
    if schema is None:
        schema, bindings, notes = derive(parameters)
        require_op(schema, where, "a pointer to a tensor", "a pointer without const, to what is computed", "none")
    else:
        bindings, notes = match(parameters, schema, where)
    anchor = _anchor(schema, bindings, where)
    dtype = anchor.dtype or "float32"
    if anchor.dtype is None:
        notes.append(f"only float32 is taken; {anchor.name} may be of other dtypes too")
    dtypes = {
        binding.argument if binding.argument is not None else binding.result: binding.parameter.dtype
        for binding in bindings
        if binding.parameter.dtype not in (None, dtype)
    }
    copies, missing = _copies(file, op)
    notes += [f'bring along "{name}", which {path.name} includes and which is not beside it' for name in missing]
    code = _call(file, function, stream, bindings)
    what = f"{path.name}:{function.line}: {function.name}"
    return Origin(
        what, schema, "from_cuda", _OUTCOME, tuple(notes), copies, bindings, dtypes, (dtype,), code
    )  # fmt: skip


def _select(file: CudaFile, symbols: Sequence[str]) -> CppFunction:
    kernels = [f for f in file.functions if f.is_kernel]
    launches = [
        f
        for f in file.functions
        if f.name != "main"
        and not f.qualifiers & {"__global__", "__device__"}
        and (f.launches or any(p.type in _STREAMS for p in f.parameters))
    ]
    candidates = launches or kernels
    # A function that another one of them calls is a part of it.
    outer = [f for f in candidates if not any(f.name in other.calls for other in candidates if other is not f)]
    known = {f.name: f for f in (*launches, *kernels)}
    if not known:
        names = ", ".join(f.name for f in file.functions) or "no function"
        raise refused(
            str(file.path), "a function that takes a cudaStream_t or launches a kernel, or a __global__ kernel", names,
            f"write one: {_EXAMPLE}",
        )  # fmt: skip
    names = list(dict.fromkeys(f.name for f in outer or candidates))
    name = select(file.path, "launch function" if launches else "kernel", known, names, symbols)
    found = [f for f in file.functions if f.name == name and f in (*launches, *kernels)]
    if len(found) > 1:
        lines = " and ".join(str(f.line) for f in found)
        raise refused(
            f"{file.path}: {name}", "one function of this name", f"those of lines {lines}", "rename one of them"
        )
    return found[0]


def _check_file(file: CudaFile, function: CppFunction, where: str) -> None:
    torch = [p for p in function.parameters if p.type in _TORCH] + [
        name for name in file.system_includes + file.own_includes if re.match(r"torch/|ATen/|c10/", name)
    ]
    if torch:
        hint = f"an op includes no header of torch: move the kernels to a file of their own with {_EXAMPLE}"
        raise refused(where, "a function of pointers and numbers", f"{torch[0]} of torch", hint)
    for other in file.functions:
        if other.is_anonymous and other.qualifiers & {"__global__", "__device__"}:
            hint = "make the kernels static or name the namespace: nvcc hashes the path into the names of this one"
            raise refused(
                f"{file.path}:{other.line}: {other.name}", "a kernel in a named namespace", "an anonymous one", hint
            )
    if len(function.template) > 1 or any(not re.match(r"(typename|class) \w+$", t) for t in function.template):
        got = f"template <{', '.join(function.template)}>"
        raise refused(where, "at most one template parameter, a type", got, "write a function that calls it with them")


def _parameter(parameter: CppParameter, place: int, function: CppFunction, where: str) -> Parameter:
    name = parameter.name or f"arg_{place}"
    where = f"{where}: {name}"
    if parameter.pointers == 1 and not parameter.is_reference:
        template = {text.split()[-1] for text in function.template}
        if parameter.type not in _DTYPES and parameter.type not in template:
            raise refused(where, _TYPES, parameter, "write a launch function of these")
        written = (None, True) if not parameter.is_const else (True, False)
        type_ = "float" if parameter.type in template else parameter.type
        text = f"{'const ' if parameter.is_const else ''}{type_}*"
        dtype = _DTYPES.get(parameter.type)
        return Parameter(name, parameter.line, "Tensor", *written, dtype=dtype, written=text)
    kind = _NUMBERS.get(parameter.type) or ("int" if parameter.type and _INTEGER.fullmatch(parameter.type) else None)
    if kind is None or parameter.pointers or (parameter.is_reference and not parameter.is_const):
        raise refused(where, _TYPES, parameter, "write a launch function of these")
    default = _default(parameter.default, kind)
    return Parameter(name, parameter.line, kind, None, None, default is not None, default, written=parameter.type)


def _default(text: str | None, kind: str) -> Any:
    """The value of a literal; None for anything else, so that the argument has no default."""
    if text is None:
        return None
    if kind == "bool":
        return {"true": True, "false": False}.get(text)
    try:
        return int(text.rstrip("uUlL")) if kind == "int" else float(text.rstrip("fF"))
    except ValueError:
        return None


def _anchor(schema: Schema, bindings: Sequence[Binding], where: str) -> Parameter:
    """The tensor of which the stub's results are copies: the first argument of the schema, of a floating dtype."""
    first = next(argument.name for argument in schema.arguments if argument.kind == "Tensor")
    parameter = next(binding.parameter for binding in bindings if binding.argument == first)
    if parameter.dtype not in (None, *_FLOATS):
        hint = "pass it as a later argument, or write the op with devtool new-op and take this file into its folder"
        raise refused(where, "a first tensor of floating point", f"{parameter.written} {parameter.name}", hint)
    return parameter


def _copies(file: CudaFile, op: str) -> tuple[dict[Path, str], list[str]]:
    """The file and what it includes from its own folder -> names in the op's folder; and what is not there."""
    copies, missing = {file.path: f"{file.path.stem}.cuh"}, []
    todo = [(file.path.parent, name) for name in file.own_includes]
    root = file.path.parent.resolve()
    while todo:
        folder, name = todo.pop()
        path = folder / name
        if name.startswith("pyxla/"):
            continue
        if not path.is_file() or not path.resolve().is_relative_to(root):
            missing.append(name)
        elif path.resolve() == root / f"{op}.h":
            hint = f"take another NAME: the op's own header is {op}.h"
            raise refused(str(path), "a header of another name than the op's", f"{op}.h", hint)
        elif path.resolve() not in {known.resolve() for known in copies}:
            copies[path] = path.resolve().relative_to(root).as_posix()
            todo += [(path.parent, other) for other in read_cuda(path).own_includes]
    return copies, sorted(set(missing))


def _call(file: CudaFile, function: CppFunction, stream: int | None, bindings: tuple[Binding, ...]) -> CudaCall:
    notes = [f"line {line} of the file, {name}: a handler neither allocates nor waits" for name, line in file.forbidden]
    if not function.is_kernel and stream is None:
        notes.append(f"{function.name} launches on the default stream: give it a cudaStream_t and pass `stream`")
    template = "<float>" if function.template else ""
    return CudaCall(
        f"{file.path.stem}.cuh", f"::{function.scope}{function.name}{template}", function.is_kernel,
        function.result == "cudaError_t", stream, bindings, tuple(notes),
    )  # fmt: skip
