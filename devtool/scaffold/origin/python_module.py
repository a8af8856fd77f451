"""A Python file, read without running it: what its names stand for, and what a function needs of the rest."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from devtool.scaffold.origin.refusals import refused

_PURE = ("float", "int", "triton.language.constexpr")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Brought:
    """What a function needs of its module: imports and definitions, as text; and what cannot come along, as notes."""

    imports: tuple[str, ...]
    definitions: tuple[str, ...]
    missing: tuple[str, ...]


class Module:
    """A parsed file.

    Attributes:
        path, text, tree: the file.
        aliases: name -> what an import makes it stand for, such as "torch.Tensor".
        bindings: name -> the statements of the module that give it a value.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            with tokenize.open(path) as file:
                self.text = file.read()
            self.tree = ast.parse(self.text)
        except (SyntaxError, UnicodeDecodeError, ValueError) as error:
            where = f"{path}:{getattr(error, 'lineno', None) or 1}"
            raise refused(where, "Python", getattr(error, "msg", error), "correct the file") from None
        self.lines = self.text.splitlines()
        self.aliases: dict[str, str] = {}
        self.bindings: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            for name in _bound_by(statement):
                self.bindings.setdefault(name, []).append(statement)
            for node in _outside_functions(statement):
                self._read_import(node)

    def functions(self) -> dict[str, list[ast.FunctionDef]]:
        """The functions of the module itself, by name."""
        found: dict[str, list[ast.FunctionDef]] = {}
        for statement in self.tree.body:
            for node in _outside_functions(statement):
                if isinstance(node, _FUNCTIONS):
                    found.setdefault(node.name, []).append(node)
        return found

    def dotted(self, node: ast.AST) -> str | None:
        """What an expression names, such as "torch.Tensor"; None if it is no name."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (value := self.dotted(node.value)):
            return f"{value}.{node.attr}"
        return None

    def _segment(self, node: ast.stmt) -> str:
        """The lines of a statement, with its decorators."""
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        return "\n".join(self.lines[first - 1 : node.end_lineno])

    def bring(self, roots: Sequence[ast.FunctionDef], packages: set[str], taken: set[str]) -> Brought:
        """What functions need of the module: the imports of these packages, constants and other functions.

        Args:
            roots: the functions; their own text is not part of the result.
            packages: packages that the new file may import; the standard library always.
            taken: names that the new file uses itself.
        """
        todo = [name for root in roots for name in self._free_names(root)]
        imports, definitions, missing = {}, {}, {}
        seen = {root.name for root in roots}
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            statements = self.bindings.get(name, [])
            statement = statements[0] if len(statements) == 1 else None
            if name in taken and name in self.bindings:
                missing[name] = f"{name}, a name that this file uses itself: rename it"
            elif not statements:
                if not hasattr(builtins, name):
                    missing[name] = f"{name}, which {self.path.name} does not define"
            elif isinstance(statement, ast.Import | ast.ImportFrom):
                text, package = _import_of(statement, name)
                if package in packages or package in sys.stdlib_module_names:
                    imports[text] = True
                else:
                    missing[name] = f"{text}: an op imports {', '.join(sorted(packages))} and the standard library"
            elif isinstance(statement, ast.FunctionDef):
                definitions[statement.lineno] = self._segment(statement)
                todo += self._free_names(statement) + _names_of_head(statement)
            elif isinstance(statement, ast.Assign | ast.AnnAssign) and self._is_constant(statement):
                definitions[statement.lineno] = self._segment(statement)
                todo += [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
            else:
                line = statements[0].lineno
                missing[name] = f"{name} of {self.path.name}:{line}, which is no function, constant or import"
        return Brought(
            tuple(imports), tuple(definitions[line] for line in sorted(definitions)), tuple(missing.values())
        )

    def _is_constant(self, statement: ast.Assign | ast.AnnAssign) -> bool:
        """Whether it gives one name a value that means the same in another file: of its calls each is pure."""
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if len(targets) != 1 or not isinstance(targets[0], ast.Name) or statement.value is None:
            return False
        nodes = list(ast.walk(statement.value))
        calls = [self.dotted(node.func) or "" for node in nodes if isinstance(node, ast.Call)]
        return not any(isinstance(node, ast.NamedExpr | ast.Await) for node in nodes) and all(
            name in _PURE or name.startswith("math.") for name in calls
        )

    def _read_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self.aliases[alias.asname or alias.name] = f"{'.' * node.level}{node.module or ''}.{alias.name}"

    def _free_names(self, function: ast.FunctionDef) -> list[str]:
        """The names of the module and of Python that a function's body uses."""
        table = symtable.symtable(self._alone(function), str(self.path), "exec")
        (scope,) = [child for child in table.get_children() if child.get_name() == function.name]
        names, scopes = set(), [scope]
        while scopes:
            scope = scopes.pop()
            names |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
            scopes += scope.get_children()
        return sorted(names)

    def _alone(self, function: ast.FunctionDef) -> str:
        """The text of a function without its decorators, as if the file had nothing else."""
        lines = self.lines[function.lineno - 1 : function.end_lineno]
        indent = len(lines[0]) - len(lines[0].lstrip())
        return "\n".join(["if True:" if indent else "", *lines])


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


def _bound_by(statement: ast.stmt) -> set[str]:
    names = set()
    for node in _outside_functions(statement):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return names


def _import_of(statement: ast.Import | ast.ImportFrom, name: str) -> tuple[str, str]:
    """The statement that imports this name alone, and the package; a relative import has none."""
    alias = next(a for a in statement.names if (a.asname or a.name.partition(".")[0]) == name)
    if isinstance(statement, ast.Import):
        return ast.unparse(ast.Import([alias])), alias.name.partition(".")[0]
    package = "" if statement.level else (statement.module or "").partition(".")[0]
    return ast.unparse(ast.ImportFrom(statement.module, [alias], statement.level)), package


def _names_of_head(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    parts = [*function.decorator_list, *arguments.defaults, *(d for d in arguments.kw_defaults if d), function.returns]
    parts += [a.annotation for a in ast.walk(arguments) if isinstance(a, ast.arg)]
    return [node.id for part in parts if part for node in ast.walk(part) if isinstance(node, ast.Name)]
