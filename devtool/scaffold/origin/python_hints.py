"""An op's schema from the type hints of a Python function."""

from __future__ import annotations

import ast
from typing import Any

from devtool.errors import MISUSED, DevtoolError
from devtool.scaffold.names import argument_problem
from devtool.scaffold.origin.python_module import Module
from devtool.scaffold.origin.refusals import refused, schema_refused
from devtool.scaffold.schema import KINDS, Argument, Schema, parse_schema

_NAMED = {"torch.Tensor": "Tensor", "int": "int", "float": "float", "bool": "bool", "str": "str"}
_LISTS = ("list", "typing.List", "typing.Sequence", "collections.abc.Sequence")
_TUPLES = ("tuple", "typing.Tuple")
_HINTS = "torch.Tensor, torch.Tensor | None, int, float, int | None, float | None, bool, str, list[int], list[float]"
_PASS_SCHEMA = "or pass SCHEMA"


def kind_of(module: Module, hint: ast.expr) -> str | None:
    """The schema's kind for a type hint, "None" for None; None if a custom call has no such argument."""
    if isinstance(hint, ast.Constant):
        if hint.value is None:
            return "None"
        return kind_of(module, _parsed(hint.value)) if isinstance(hint.value, str) and _parsed(hint.value) else None
    if isinstance(hint, ast.BinOp) and isinstance(hint.op, ast.BitOr):
        return _either(kind_of(module, hint.left), kind_of(module, hint.right))
    if isinstance(hint, ast.Subscript):
        outer, inner = module.dotted(hint.value), hint.slice
        if outer in _LISTS and (element := kind_of(module, inner)) in ("int", "float"):
            return f"{element}[]"
        if outer == "typing.Optional":
            return _either(kind_of(module, inner), "None")
        if outer == "typing.Union" and isinstance(inner, ast.Tuple) and len(inner.elts) == 2:
            return _either(*(kind_of(module, element) for element in inner.elts))
        return None
    return _NAMED.get(module.dotted(hint) or "")


def _either(left: str | None, right: str | None) -> str | None:
    kind = left if right == "None" else right if left == "None" else None
    return f"{kind}?" if f"{kind}?" in KINDS else None


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


class Signature:
    """The parameters of a function, checked for what a custom call can take.

    Raises:
        DevtoolError: it is no plain function of positional parameters.
    """

    def __init__(self, module: Module, function: ast.FunctionDef):
        self._module, self._function = module, function
        self._check_form()
        arguments = function.args
        self._parameters = [*arguments.posonlyargs, *arguments.args]
        first_default = len(self._parameters) - len(arguments.defaults)
        self._defaults = dict(zip((p.arg for p in self._parameters[first_default:]), arguments.defaults, strict=True))
        self.names = [parameter.arg for parameter in self._parameters]
        for parameter in self._parameters:
            if problem := argument_problem(parameter.arg):
                raise refused(self.where(parameter), problem, repr(parameter.arg), "rename the parameter")

    def where(self, node: ast.AST) -> str:
        """A place in the file, for a message."""
        end = f": {node.arg}" if isinstance(node, ast.arg) else ""
        return f"{self._module.path}:{node.lineno}: {self._function.name}{end}"

    def schema(self, mutated: set[str], results: int) -> Schema:
        """The schema that the hints state.

        Raises:
            DevtoolError: a hint or a default is missing, or is none that a schema can state.
        """
        schema = Schema(
            tuple(self._argument(parameter, parameter.arg in mutated) for parameter in self._parameters),
            ("",) * results,
        )
        try:
            return parse_schema(str(schema))
        except DevtoolError as error:
            text, _, hint = error.message.removeprefix("new-op: schema: ").rpartition("\n\nhint: ")
            message = f"new-op: --from: {self.where(self._function)}: {text}"
            raise DevtoolError(message, hint, MISUSED) from None

    def check(self, schema: Schema, mutated: dict[str, int], results: int | None) -> None:
        """Raises DevtoolError unless the user's schema fits the function."""
        names = [argument.name for argument in schema.arguments]
        if names != self.names:
            hint = f"name them as {self.where(self._function)} does, in its order"
            raise schema_refused(f"the arguments {', '.join(self.names) or 'none'}", ", ".join(names), hint)
        for argument, parameter in zip(schema.arguments, self._parameters, strict=True):
            kind = kind_of(self._module, parameter.annotation) if parameter.annotation else None
            if kind not in (None, "None", argument.kind):
                raise schema_refused(f"{kind} {argument.name}", argument.kind, f"it is so in {self.where(parameter)}")
            if argument.name in mutated and not argument.mutated:
                hint = f"{self._module.path}:{mutated[argument.name]} updates it in place"
                raise schema_refused(f"Tensor(a!) {argument.name}", argument.kind, hint)
        if results is not None and len(schema.results) != results:
            hint = f"{self.where(self._function)} returns {results}"
            raise schema_refused(f"{results} result{'s' * (results != 1)}", len(schema.results), hint)

    def results(self) -> int | None:
        """How many tensors the function returns, from its hint; None without one."""
        hint = self._function.returns
        if hint is None:
            return None
        if isinstance(hint, ast.Constant) and isinstance(hint.value, str):
            hint = _parsed(hint.value) or hint
        kind = kind_of(self._module, hint)
        if kind in ("None", "Tensor"):
            return int(kind == "Tensor")
        if isinstance(hint, ast.Subscript) and self._module.dotted(hint.value) in _TUPLES:
            elements = hint.slice.elts if isinstance(hint.slice, ast.Tuple) else [hint.slice]
            if all(kind_of(self._module, element) == "Tensor" for element in elements):
                return len(elements)
        expected = "torch.Tensor, tuple[torch.Tensor, torch.Tensor] or None as the result"
        raise refused(self.where(self._function), expected, ast.unparse(hint), "an op returns tensors, a known number")

    def _check_form(self) -> None:
        function, arguments = self._function, self._function.args
        if isinstance(function, ast.AsyncFunctionDef):
            raise refused(self.where(function), "a plain function", "an async one", "take a function of tensors")
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function)):
            raise refused(self.where(function), "a function that returns tensors", "a generator", "return them")
        if arguments.kwonlyargs:
            hint = "the arguments of a custom call have an order: remove the *"
            raise refused(self.where(arguments.kwonlyargs[0]), "a positional parameter", "a keyword-only one", hint)
        for star, parameter in (("*", arguments.vararg), ("**", arguments.kwarg)):
            if parameter:
                got = f"{star}{parameter.arg}"
                raise refused(self.where(parameter), "parameters of a known number", got, "name each of them")

    def _argument(self, parameter: ast.arg, mutated: bool) -> Argument:
        hint = parameter.annotation
        if hint is None:
            advice = f"write one of {_HINTS}; {_PASS_SCHEMA}"
            raise refused(self.where(parameter), "a type hint", "none", advice)
        kind = kind_of(self._module, hint)
        if kind in (None, "None"):
            advice = f"{_PASS_SCHEMA[3:]} if it is one of these under another name"
            raise refused(self.where(parameter), f"one of {_HINTS}", ast.unparse(hint), advice)
        if mutated and kind != "Tensor":
            advice = "an op updates tensors that are always there: make two functions of it"
            raise refused(self.where(parameter), "torch.Tensor, as it is updated in place", ast.unparse(hint), advice)
        if parameter.arg not in self._defaults:
            return Argument(parameter.arg, kind, mutated)
        return Argument(parameter.arg, kind, mutated, True, self._default(parameter, kind))

    def _default(self, parameter: ast.arg, kind: str) -> Any:
        node = self._defaults[parameter.arg]
        if isinstance(node, ast.Name) and len(bound := self._module.bindings.get(node.id, [])) == 1:
            node = getattr(bound[0], "value", None) or node
        try:
            value = ast.literal_eval(node)
        except ValueError:
            got = ast.unparse(self._defaults[parameter.arg])
            advice = f"write the value, {_PASS_SCHEMA}"
            raise refused(self.where(parameter), "a literal as the default", got, advice) from None
        if kind.startswith("float") and type(value) is int:
            value = float(value)
        if kind.endswith("]"):
            advice = "torch.library infers no default for a list: leave it out"
            raise refused(self.where(parameter), "no default", ast.unparse(node), advice)
        return value
