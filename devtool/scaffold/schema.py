"""Parses an op's schema, and says where it is wrong. (pyxla gets the schema from torch, which is slow to import.)"""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput

from devtool.errors import MISUSED, DevtoolError
from devtool.scaffold.names import argument_problem

KINDS = ("Tensor", "Tensor?", "int", "int?", "float", "float?", "bool", "str", "int[]", "float[]")
DEFAULT_SCHEMA = "(Tensor x, float scale=1.0) -> Tensor"
_MOST_ARGUMENTS = 64
_MOST_DIGITS = len(str(-(2**63)))
_TERMINALS = {
    "LPAR": "'('", "RPAR": "')'", "COMMA": "','", "EQUAL": "'='", "__ANON_0": "'->'", "NAME": "a name", "SUFFIX": "'?'",
    "WRITE": "'!'", "NUMBER": "a number", "STRING": "a string", "LIST": "a list",
    "$END": "the end",
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """One argument. `has_default` distinguishes a default of None from no default; `mutated` means Tensor(a!)."""

    name: str
    kind: str
    mutated: bool = False
    has_default: bool = False
    default: Any = None


@dataclass(frozen=True)
class Schema:
    """The arguments of an op and the names of its results, each of them a Tensor; an empty name: it has none."""

    arguments: tuple[Argument, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        """The schema as torch writes it."""
        mutated = [argument.name for argument in self.arguments if argument.mutated]
        parts = []
        for argument in self.arguments:
            kind = f"Tensor(a{mutated.index(argument.name)}!)" if argument.mutated else argument.kind
            value = f'"{argument.default}"' if isinstance(argument.default, str) else repr(argument.default)
            parts.append(f"{kind} {argument.name}{'=' + value if argument.has_default else ''}")
        results = [f"Tensor {name}".rstrip() for name in self.results]
        return f"({', '.join(parts)}) -> {results[0] if len(results) == 1 else '(' + ', '.join(results) + ')'}"


def parse_schema(text: str) -> Schema:
    """Parses a schema.

    Raises:
        DevtoolError: the text is not a schema, or a custom call cannot have it; the error shows where.
    """
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None
    return _Reader(text).schema(tree)


@cache
def _parser() -> Lark:
    return Lark((Path(__file__).parent / "schema.lark").read_text(), parser="lalr", maybe_placeholders=True)


def _syntax_error(text: str, error: UnexpectedInput) -> DevtoolError:
    if isinstance(error, UnexpectedCharacters):
        start, length, names = error.pos_in_stream, 1, error.allowed
    else:
        at_end = error.token.type == "$END"
        start, length, names = (len(text), 1, error.accepts) if at_end else (
            error.token.start_pos, len(error.token), error.accepts)  # fmt: skip
    got = repr(text[start : start + length]) if start < len(text) else "the end"
    if got == "'*'":
        return _mistake(text, start, length, "an argument", got, "all arguments are positional: leave the * out")
    wanted = sorted(_TERMINALS[name] for name in names or () if name in _TERMINALS) or ["another character"]
    return _mistake(text, start, length, " or ".join(wanted), got)


def _mistake(text: str, start: int, length: int, expected: str, got: str, hint: str | None = None) -> DevtoolError:
    shown = "".join(character if character.isprintable() else " " for character in text)
    place = f"  {shown}\n  {' ' * start}{'^' * max(length, 1)}"
    example = 'a schema looks like "(Tensor x, Tensor? weight, float eps=1e-6) -> Tensor"'
    return DevtoolError(f"new-op: schema: expected {expected}, got {got}\n\n{place}", hint or example, MISUSED)


class _Reader:
    """Turns the syntax tree into the schema, with the checks that need more than a grammar."""

    def __init__(self, text: str):
        self._text = text
        self._aliases: set[str] = set()
        self._names: set[str] = set()

    def schema(self, tree: Tree) -> Schema:
        *arguments, results = tree.children
        read: list[Argument] = []
        for node in arguments:
            if node is not None:
                read.append(self._argument(node, after_default=bool(read) and read[-1].has_default))
        if len(read) > _MOST_ARGUMENTS:
            name = arguments[_MOST_ARGUMENTS].children[1]
            self._refuse(name, f"at most {_MOST_ARGUMENTS} arguments, as torch", str(len(read)))
        names = self._results(results)
        end = self._text.rindex(")", 0, self._text.rindex("->"))
        if not any(argument.kind == "Tensor" for argument in read):
            hint = "an op without tensor arguments takes a torch.device: write it by hand, from simple_add"
            self._refuse_at(end, 1, "a Tensor among the arguments", "none", hint)
        if not names and not any(argument.mutated for argument in read):
            self._refuse_at(end, 1, "a result, or an argument to update in place", "neither", "mark it: Tensor(a!) x")
        out = next((i for i, argument in enumerate(read) if argument.name == "out"), None)
        if names and out is not None:
            hint = "torch.compile takes out= as the place for the results"
            self._refuse(arguments[out].children[1], "another name where there are results", "'out'", hint)
        return Schema(tuple(read), names)

    def _argument(self, node: Tree, after_default: bool) -> Argument:
        kind_node, name, default = node.children
        kind, mutated = self._type(kind_node)
        self._take(name, "argument")
        if default is None:
            if after_default:
                self._refuse(name, "a default, as the argument before has one", "none")
            return Argument(str(name), kind, mutated)
        return Argument(str(name), kind, mutated, True, self._default(kind, default.children[0]))

    def _take(self, name: Token, of: str) -> None:
        problem = argument_problem(name)
        if problem is None and name in self._names:
            problem = "a name of its own"
        if problem:
            self._refuse(name, problem, repr(str(name)), f"take another name for the {of}")
        self._names.add(str(name))

    def _type(self, node: Tree) -> tuple[str, bool]:
        name, alias, *suffixes = node.children
        kind = str(name) + "".join("".join(token.split()) for token in suffixes)
        if kind not in KINDS:
            near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.5)
            last = suffixes[-1] if suffixes else name
            length = last.end_pos - name.start_pos
            hint = f"did you mean {near[0]!r}?" if near else "these are what a custom call takes"
            self._refuse_at(name.start_pos, length, f"one of {', '.join(KINDS)}", kind, hint)
        if alias is None:
            return kind, False
        letter, write = alias.children
        if kind != "Tensor" or write is None:
            hint = "Tensor(a!) marks a tensor that the op updates in place"
            got = f"one on {kind}" if write else "one without '!'"
            self._refuse(letter, "an alias of the form Tensor(a!)", got, hint)
        if letter in self._aliases:
            self._refuse(letter, "an alias letter of its own", repr(str(letter)))
        self._aliases.add(str(letter))
        return kind, True

    def _results(self, node: Tree) -> tuple[str, ...]:
        results = [child.children for child in node.children if child is not None]
        for kind, own in results:
            name, alias, *suffixes = kind.children
            if alias is not None:
                hint = "an argument that is updated in place is no result: leave it out, or return ()"
                self._refuse(alias.children[0], "a result without an alias", "one", hint)
            if name != "Tensor" or suffixes:
                length = [name, *suffixes][-1].end_pos - name.start_pos
                self._refuse_at(name.start_pos, length, "Tensor as a result", "".join([name, *suffixes]))
            if own is not None:
                self._take(own, "result")
            elif any(other is not None for _, other in results):
                self._refuse(name, "a name for each result or for none", "none here", "(Tensor weights, Tensor ids)")
        return tuple(str(own or "") for _, own in results)

    def _default(self, kind: str, token: Token) -> Any:
        if kind.endswith("]"):
            hint = "torch.library infers no default for a list: leave it out"
            self._refuse(token, "no default", str(token), hint)
        value = _value(token)
        optional = kind.endswith("?")
        fits = {
            "Tensor": False,
            "int": type(value) is int and -(2**63) <= value < 2**63,
            "float": type(value) in (int, float) and _torch_reads(float(value)),
            "bool": type(value) is bool,
            "str": type(value) is str and value.isprintable() and "\\" not in value and '"' not in value,
        }[kind.removesuffix("?")]
        if not (fits or (optional and value is None)):
            wanted = {
                "Tensor": "no default", "Tensor?": "None", "int": "a 64-bit integer", "float": "a number",
                "bool": "True or False", "str": "a string without quotes or backslashes in it, all of it printable",
            }  # fmt: skip
            expected = wanted.get(kind) or f"{wanted[kind[:-1]]} or None"
            hint = "torch's schemas hold finite numbers that are not subnormal" if kind.startswith("float") else None
            self._refuse(token, f"{expected} as the default of type {kind}", str(token), hint)
        return float(value) if fits and kind.startswith("float") else value

    def _refuse(self, token: Token, expected: str, got: str, hint: str | None = None) -> None:
        self._refuse_at(token.start_pos, len(token), expected, got, hint)

    def _refuse_at(self, start: int, length: int, expected: str, got: str, hint: str | None = None) -> None:
        raise _mistake(self._text, start, length, expected, got, hint)


def _torch_reads(number: float) -> bool:
    # torch's schema parser rejects what std::stod calls out of range, which includes subnormal numbers.
    return number == 0 or sys.float_info.min <= abs(number) <= sys.float_info.max


def _value(token: Token) -> Any:
    if token.type == "STRING":
        return token[1:-1]
    if token.type == "NAME":
        return {"True": True, "False": False, "None": None}.get(str(token), token)
    # With more digits it is not a 64-bit integer; a float may have them, and is infinite at worst.
    return int(token) if token.lstrip("-").isdigit() and len(token) <= _MOST_DIGITS else float(token)
