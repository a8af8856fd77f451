"""A Python function with type hints becomes an op: its hints the schema, its body the reference."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from devtool.errors import MISUSED, DevtoolError, unknown
from devtool.scaffold.origin.origin import Origin
from devtool.scaffold.origin.python_hints import Signature, kind_of
from devtool.scaffold.origin.python_module import Brought, Module
from devtool.scaffold.origin.python_updates import updates
from devtool.scaffold.origin.refusals import refused
from devtool.scaffold.schema import Schema

_PACKAGES = {"torch", "pyxla"}
_OF_THE_FILE = {"Check", "accumulation_dtype", "check", "custom_op"}
_SINGLE = ("float", "half", "bfloat16")
_OUTCOME = "The reference is the function; the kernels are stubs, so the test fails until they compute the same."


@dataclass(frozen=True)
class Reference:
    """The text of the reference.

    Attributes:
        summary: the docstring's first line; "" if there is none.
        docstring: its lines as written, without indentation; "" if there is none.
        body: the statements after it, without indentation.
        imports, definitions: what they need, as text.
    """

    summary: str
    docstring: str
    body: str
    imports: tuple[str, ...]
    definitions: tuple[str, ...]


def find_module(name: str) -> Path:
    """The file of a module, found as an import from the working directory finds it. Nothing is imported.

    Raises:
        DevtoolError: there is none, or it is not written in Python.
    """
    places = [str(Path.cwd()), *sys.path]
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        full = ".".join(parts[:count])
        # find_spec of importlib.util imports the packages above a module; an editable install has a finder of its own.
        found = (finder.find_spec(full, places) for finder in sys.meta_path)
        spec = next((spec for spec in found if spec), None)
        if spec is None:
            hint = "name its file instead: --from src/layers/norm.py:rms_norm"
            raise DevtoolError(f"new-op: --from: expected a module that Python finds, got {full}", hint, MISUSED)
        places = list(spec.submodule_search_locations or [])
    if not spec.origin or not spec.origin.endswith(".py"):
        got = f"{name} in {spec.origin}"
        hint = "take a function with a body to read"
        raise DevtoolError(f"new-op: --from: expected a module written in Python, got {got}", hint, MISUSED)
    return Path(spec.origin)


def read_function(path: Path, name: str, op: str, schema: Schema | None) -> Origin:
    """Reads a function of a Python file.

    Args:
        op: the name of the op.
        schema: the user's, which wins; None takes that of the type hints.

    Raises:
        DevtoolError: no such function, or it cannot become an op with this schema.
    """
    module = Module(path)
    function = _function(module, name)
    signature = Signature(module, function)
    tensors = _tensor_parameters(module, function, schema)
    updated = updates(function, tensors)
    stated, notes = signature.results(), []
    results = stated
    if stated is None:
        results = _returned(function)
        notes.append(f"{name} has no return annotation: {results} result{'s' * (results != 1)} assumed")
    mutated = set(updated) if schema is None else {a.name for a in schema.arguments if a.mutated}
    edits = _returns_of(function, mutated) if mutated else []
    if edits:
        results = 0
    if schema is None:
        schema = signature.schema(mutated, results)
    else:
        signature.check(schema, updated, 0 if edits else stated)
    notes += [f"{function.name}'s decorator @{ast.unparse(d)} is left out" for d in function.decorator_list]
    brought = module.bring([function], _PACKAGES, _OF_THE_FILE | {op})
    notes += [f"bring along {missing}" for missing in brought.missing]
    if lines := _single_precision(function):
        places = ", ".join(f"{path.name}:{line}" for line in lines)
        notes.append(f"float32 in {places}: the tests run the reference in float64, use accumulation_dtype(dtype)")
    code = _reference(module, function, edits, brought)
    if code.docstring and "Args:" not in code.docstring:
        notes.append("complete the docstring: Args, Returns, Raises and Source")
    what = f"{path.name}:{function.lineno}: {name}"
    return Origin(what, schema, "from_python", _OUTCOME, tuple(notes), code=code)


def _function(module: Module, name: str) -> ast.FunctionDef:
    functions = module.functions()
    if name not in functions:
        hint = f"def {name}(x: torch.Tensor) -> torch.Tensor: at the top level of the file, not in a class"
        raise unknown("new-op", "--from", f"a function of {module.path}", name, list(functions), hint)
    if len(found := functions[name]) > 1:
        lines = " and ".join(str(function.lineno) for function in found)
        raise refused(f"{module.path}: {name}", "one function of this name", f"those of lines {lines}", "rename one")
    (function,) = found
    for decorator in function.decorator_list:
        if (module.dotted(getattr(decorator, "func", decorator)) or "").startswith("triton."):
            hint = f"--from {module.path} --symbol {name} takes the kernel"
            where = f"{module.path}:{function.lineno}: {name}"
            raise refused(where, "a function of tensors", "a Triton kernel", hint)
    return function


def _tensor_parameters(module: Module, function: ast.FunctionDef, schema: Schema | None) -> list[str]:
    if schema:
        return [a.name for a in schema.arguments if a.kind.startswith("Tensor")]
    hints = [(p.arg, p.annotation) for p in (*function.args.posonlyargs, *function.args.args)]
    return [name for name, hint in hints if hint and (kind_of(module, hint) or "").startswith("Tensor")]


def _own_returns(function: ast.FunctionDef) -> list[ast.Return]:
    """The return statements of the function itself, not of functions in it."""
    found, todo = [], list(function.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.Return):
            found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return found


def _returned(function: ast.FunctionDef) -> int:
    """How many tensors the return statements show: one for any expression but a tuple."""
    values = [node.value for node in _own_returns(function) if node.value is not None]
    return max((len(value.elts) if isinstance(value, ast.Tuple) else 1 for value in values), default=0)


def _returns_of(function: ast.FunctionDef, updated: set[str]) -> list[ast.Return]:
    """The return statements, if all of them return nothing but tensors that are updated in place."""
    returns = _own_returns(function)
    for node in returns:
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] if node.value else []
        if not all(isinstance(part, ast.Name) and part.id in updated for part in parts):
            return []
    return [node for node in returns if node.value is not None]


def _single_precision(function: ast.FunctionDef) -> list[int]:
    """The lines that compute in a dtype of their own choice."""
    dtypes = ("torch.float32", "torch.float")
    lines = {n.lineno for n in ast.walk(function) if isinstance(n, ast.Attribute) and ast.unparse(n) in dtypes}
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    lines |= {call.lineno for call in calls if call.func.attr in _SINGLE}
    return sorted(lines)


def _reference(module: Module, function: ast.FunctionDef, edits: list[ast.Return], brought: Brought) -> Reference:
    raw = [line.encode() for line in module.lines]
    # From the last one, so that the columns of the others stay right.
    for node in sorted(edits, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        after = raw[node.end_lineno - 1][node.end_col_offset :]
        raw[node.lineno - 1 : node.end_lineno] = [raw[node.lineno - 1][: node.col_offset] + b"return" + after]
    removed = sum(node.end_lineno - node.lineno for node in edits)
    lines = [line.decode() for line in raw]
    text = ast.get_docstring(function, clean=False)
    statements = function.body[1:] if text is not None else function.body
    docstring = ""
    if text is not None:
        node = function.body[0]
        written = "\n".join(module.lines[node.lineno - 1 : node.end_lineno])
        docstring = textwrap.dedent(" " * 4 + written[node.col_offset :] if node.lineno == function.lineno else written)
    if not statements:
        raise refused(f"{module.path}:{function.lineno}: {function.name}", "a body", "a docstring alone", "write it")
    first, end = statements[0].lineno, function.end_lineno - removed
    if first in (function.lineno, function.body[0].end_lineno if text is not None else 0):
        body = "\n".join(ast.unparse(statement) for statement in statements)
    else:
        while lines[first - 2].strip().startswith("#"):
            first -= 1
        body = textwrap.dedent("\n".join(lines[first - 1 : end]))
    summary = inspect.cleandoc(text or "").split("\n")[0].strip().rstrip(".")
    imports = tuple(line for line in brought.imports if line != "import torch")
    return Reference(summary, docstring.strip(), body.rstrip(), imports, brought.definitions)
