"""A Triton kernel becomes an op: what it loads its tensors, what it stores its results."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devtool.scaffold.origin.origin import Origin
from devtool.scaffold.origin.parameters import Binding, Parameter, derive, match, require_op, sizes_of
from devtool.scaffold.origin.python_module import Module
from devtool.scaffold.origin.refusals import refused
from devtool.scaffold.origin.selection import select
from devtool.scaffold.origin.triton_flow import uses_of
from devtool.scaffold.schema import Schema

_OUTCOME = (
    "Host code and reference are stubs, so the test passes without nvcc; with it, the kernel runs in Triton's "
    "interpreter, and the test fails until the reference says what it computes."
)


@dataclass(frozen=True)
class TritonKernel:
    """What the templates of triton_kernels.py and of the launch need.

    Attributes:
        name, camel: of the kernel; its launch function is Launch<camel>.
        text: the kernel and what it needs, without the imports.
        imports: those, as text.
        pointers: parameters that are pointers, as written.
        divisible: sizes of elements and rows, which are often divisible by 16.
        types: other parameter -> Triton's type.
        constants: constexpr -> its value as text.
        grid: the first size of the grid, as an expression.
        notes: what to decide about the launch.
    """

    name: str
    camel: str
    text: str
    imports: tuple[str, ...]
    pointers: tuple[str, ...]
    divisible: tuple[str, ...]
    types: dict[str, str]
    constants: dict[str, str]
    grid: str
    notes: tuple[str, ...]


def read_kernel(path: Path, symbols: Sequence[str], schema: Schema | None) -> Origin:
    """Reads a @triton.jit kernel of a Python file.

    Args:
        symbols: the kernel's name; none if the file has one that no other calls.
        schema: the user's, which wins; None takes what the kernel loads and stores.

    Raises:
        DevtoolError: no such kernel, or it cannot become an op with this schema.
    """
    module = Module(path)
    kernels = {
        name: found[-1]
        for name, found in module.functions().items()
        if any(_is_jit(module, d) for d in found[-1].decorator_list)
    }
    if not kernels:
        names = ", ".join(module.functions()) or "no function"
        hint = f"--from {path}:FUNCTION takes the body of a Python function as the reference"
        raise refused(str(path), "a @triton.jit kernel", names, hint)
    called = {
        node.func.id
        for kernel in kernels.values()
        for node in ast.walk(kernel)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != kernel.name
    }
    kernel = kernels[select(path, "kernel", kernels, [name for name in kernels if name not in called], symbols)]
    where = f"{path}:{kernel.lineno}: {kernel.name}"
    parameters, constants = _parameters(module, kernel, kernels, where)
    if schema is None:
        schema, bindings, notes = derive(parameters)
        texts = "a pointer that tl.load reads", "a pointer that tl.store writes", "none that can be followed"
        require_op(schema, where, *texts)
    else:
        bindings, notes = match(parameters, schema, where)
    brought = module.bring([kernel], {"triton"}, {"VARIANTS", "POINTERS"})
    notes += [f"bring along {missing}" for missing in brought.missing]
    others = [ast.unparse(d) for d in kernel.decorator_list if not _is_jit(module, d)]
    notes += [f"@{other.partition('(')[0]} is left out: its choices become VARIANTS" for other in others]
    code = _code(module, kernel, brought.imports, brought.definitions, bindings, constants)
    what = f"{path.name}:{kernel.lineno}: {kernel.name}"
    return Origin(what, schema, "from_triton", _OUTCOME, tuple(notes), bindings=bindings, code=code)


def _is_jit(module: Module, decorator: ast.expr) -> bool:
    name = module.dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return name in ("triton.jit", "triton.runtime.jit.jit")


def _parameters(
    module: Module, kernel: ast.FunctionDef, kernels: dict[str, ast.FunctionDef], where: str
) -> tuple[list[Parameter], dict[str, str]]:
    """The parameters that a call passes, and the constants with their values as text."""
    if kernel.args.kwonlyargs or kernel.args.vararg or kernel.args.kwarg:
        raise refused(where, "positional parameters", ast.unparse(kernel.args), "name each of them")
    uses = uses_of(module, kernel, kernels)
    arguments = [*kernel.args.posonlyargs, *kernel.args.args]
    texts = [None] * (len(arguments) - len(kernel.args.defaults)) + [ast.unparse(d) for d in kernel.args.defaults]
    parameters, constants = [], {}
    blocks = [a.arg for a in arguments if _is_constexpr(a) and ("BLOCK" in a.arg.upper() or a.arg in uses.integers)]
    for argument, text in zip(arguments, texts, strict=True):
        name, line = argument.arg, argument.lineno
        if _is_constexpr(argument):
            # Several blocks make a tile, and tl.dot takes 16 at least.
            constants[name] = text or (("1024" if len(blocks) == 1 else "32") if name in blocks else "1")
        elif name in uses.pointers or name.endswith("_ptr"):
            is_written = name in uses.stored
            parameters.append(Parameter(name, line, "Tensor", name in uses.loaded or not is_written, is_written))
        else:
            is_size = name in uses.integers or name in sizes_of([Parameter(name, line, "int")])
            parameters.append(Parameter(name, line, "int" if is_size else "float"))
    return parameters, constants


def _is_constexpr(argument: ast.arg) -> bool:
    return argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation)


def _code(
    module: Module,
    kernel: ast.FunctionDef,
    imports: tuple[str, ...],
    definitions: tuple[str, ...],
    bindings: tuple[Binding, ...],
    constants: dict[str, str],
) -> TritonKernel:
    lines = module.lines[kernel.lineno - 1 : kernel.end_lineno]
    text = "\n\n\n".join([*definitions, "\n".join(["@triton.jit", *lines])])
    numbers = {b.parameter.name: b for b in bindings if b.parameter.kind != "Tensor"}
    types = {name: "fp32" if b.parameter.kind == "float" else "i32" for name, b in numbers.items()}
    blocks = [name for name in constants if "BLOCK" in name.upper()]
    block = blocks[0] if len(blocks) == 1 else None
    sizes = {b.size: name for name, b in numbers.items() if b.size}
    notes = ()
    if "row_count" in sizes:
        grid = sizes["row_count"]
    elif "element_count" in sizes:
        grid = f"cdiv({sizes['element_count']}, {block})" if block else sizes["element_count"]
    else:
        grid = "1"
        notes = ("the grid is computed from the kernel's own integers: give it one more parameter, such as the rows",)
    if "column_count" in sizes and block:
        notes += (f"without a loop a row longer than {block} is cut off: compile variants, each with `when`",)
    camel = "".join(part.capitalize() for part in kernel.name.split("_"))
    imports = tuple(line for line in imports if line not in ("import triton", "import triton.language as tl"))
    pointers = tuple(b.parameter.name for b in bindings if b.parameter.kind == "Tensor")
    divisible = tuple(name for name, b in numbers.items() if b.size in ("element_count", "column_count"))
    return TritonKernel(kernel.name, camel, text, imports, pointers, divisible, types, constants, grid, notes)
