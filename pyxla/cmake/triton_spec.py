"""What an op's triton_kernels.py states: the variants of its kernels, read and checked."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Triton's name of a type -> C++'s: of what a pointer points to (XLA's dtype) and of a number.
POINTERS = {
    "*fp64": "F64", "*fp32": "F32", "*bf16": "BF16", "*fp16": "F16", "*fp8e4nv": "F8E4M3FN", "*fp8e5": "F8E5M2",
    "*i64": "S64", "*i32": "S32", "*i16": "S16", "*i8": "S8", "*u8": "U8", "*i1": "PRED",
}  # fmt: skip
INTEGERS = {"i32": "int32_t", "i64": "int64_t"}
FLOATS = {"fp32": "float", "fp64": "double"}
_KEYS = ("kernel", "types", "constants", "divisible_by_16", "when", "grid", "num_warps", "num_stages")
_OPTIONAL = {"constants": {}, "divisible_by_16": (), "when": "True", "num_warps": 4, "num_stages": 3}
_FUNCTIONS = {"min": "std::min<int64_t>", "max": "std::max<int64_t>", "cdiv": "pyxla::CeilDiv"}
_DIVISIONS = {ast.FloorDiv: "pyxla::FloorDiv", ast.Mod: "pyxla::Modulo"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


class SpecError(Exception):
    """A mistake in triton_kernels.py; message and hint."""

    def __init__(self, what: str, expected: str, got: object, hint: str):
        super().__init__(f"triton_kernels.py: {what}: expected {expected}, got {got}", hint)


@dataclass(frozen=True)
class Variant:
    """One compilation of a kernel, for each architecture, and the calls that it takes.

    Attributes:
        kernel: the @triton.jit function.
        types: parameter -> Triton's type, in the kernel's order; without the constexprs.
        constants: constexpr -> value.
        divisible_by_16: parameters whose value (of a pointer: its address) is a multiple of 16.
        when: a condition on the integers among the parameters and constants.
        grid: three expressions of the same.
        num_warps, num_stages: Triton's options.
    """

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    divisible_by_16: tuple[str, ...]
    when: Expression
    grid: tuple[Expression, Expression, Expression]
    num_warps: int
    num_stages: int

    def takes(self, dtypes: Mapping[str, str], values: Mapping[str, int]) -> bool:
        """Whether a call fits, as the launcher decides: Triton's types of the pointers, addresses and integers."""
        return (
            all(self.types[name] == dtype for name, dtype in dtypes.items())
            and all(-(2**31) <= v < 2**31 for name, v in values.items() if self.types.get(name) == "i32")
            and all(values[name] % 16 == 0 for name in self.divisible_by_16)
            and bool(self.when.value(values))
        )

    def __str__(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in (self.types | self.constants | {"num_warps": self.num_warps}).items())


class Expression:
    """Arithmetic on integers as Python writes it, also for C++: names, + - * // %, comparisons, min, max, cdiv."""

    def __init__(self, what: str, text: object, integers: set[str], constants: Mapping[str, Any]):
        self._what, self.text = what, str(text)
        self._integers, self._constants = integers, constants
        try:
            self._tree = ast.parse(self.text, mode="eval").body
        except SyntaxError:
            raise self._refused("an expression of integers", repr(self.text)) from None
        self.cpp = self._cpp(self._tree)

    def value(self, integers: Mapping[str, int]) -> int:
        """What it comes to for these arguments."""
        names = {**self._constants, **integers, "cdiv": lambda a, b: -(-a // b), "min": min, "max": max}
        return eval(compile(ast.Expression(self._tree), self.text, "eval"), {"__builtins__": {}}, names)

    def _cpp(self, node: ast.AST) -> str:
        match node:
            case ast.Constant(value=bool(value)):
                return str(value).lower()
            case ast.Constant(value=int(value)):
                return f"INT64_C({value})"
            case ast.Name(id=name) if name in self._constants:
                return self._cpp(ast.Constant(self._constants[name]))
            case ast.Name(id=name) if name in self._integers:
                return f"arg_{name}"
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                return f"({self._cpp(left)} {_OPERATORS[type(op)]} {self._cpp(right)})"
            case ast.BinOp(left, op, right) if type(op) in _DIVISIONS:
                self._check_divisor(right)
                return f"{_DIVISIONS[type(op)]}({self._cpp(left)}, {self._cpp(right)})"
            case ast.Compare(left, [op], [right]) if type(op) in _COMPARISONS:
                return f"({self._cpp(left)} {_COMPARISONS[type(op)]} {self._cpp(right)})"
            # As a number `rows or 1` is rows in Python, and 1 in C++.
            case ast.BoolOp(op, values) if all(map(self._is_truth, values)):
                return f"({(' && ' if isinstance(op, ast.And) else ' || ').join(map(self._cpp, values))})"
            case ast.Call(ast.Name(id=name), [left, right], []) if name in _FUNCTIONS:
                if name == "cdiv":
                    self._check_divisor(right)
                return f"{_FUNCTIONS[name]}({self._cpp(left)}, {self._cpp(right)})"
        allowed = ", ".join(sorted(self._integers | self._constants.keys()))
        raise self._refused(f"integers ({allowed}), + - * // %, comparisons, min, max, cdiv", ast.unparse(node))

    def _is_truth(self, node: ast.AST) -> bool:
        value = self._constants.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        return isinstance(node, ast.Compare | ast.BoolOp) or isinstance(value, bool)

    def _check_divisor(self, node: ast.AST) -> None:
        # A call with a 0 there would end the process.
        value = self._constants.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        if type(value) is not int or value <= 0:
            raise self._refused("a constant above 0 as divisor", ast.unparse(node))

    def _refused(self, expected: str, got: str) -> SpecError:
        return SpecError(self._what, expected, got, "cdiv(rows, BLOCK) and `hidden <= BLOCK` are such expressions")


def read_variants(path: Path) -> list[Variant]:
    """The VARIANTS of a triton_kernels.py.

    Raises:
        SpecError: it states none, or one of them is wrong.
    """
    module = _load(path)
    stated = getattr(module, "VARIANTS", None)
    if not isinstance(stated, list) or not stated:
        hint = "list what is to be compiled: docs/guide/three-routes.md"
        raise SpecError("VARIANTS", "a list of variants", repr(stated) if stated is not None else "none", hint)
    variants = [_variant(f"VARIANTS[{index}]", entry) for index, entry in enumerate(stated)]
    for index, variant in enumerate(variants):
        first = next(other for other in variants if other.kernel is variant.kernel)
        for name, type_ in variant.types.items():
            if _category(type_) != _category(first.types[name]):
                expected = f"the kind of {first.types[name]}, as in the kernel's first variant"
                raise SpecError(f"VARIANTS[{index}]: {name}", expected, type_, "write a kernel of its own for it")
    return variants


def _load(path: Path) -> Any:
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_triton_kernels", path)
    module = importlib.util.module_from_spec(spec)
    # inspect, by which Triton reads the source, looks for the module there.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        where = f" in line {lines[-1]}" if lines else ""  # the text of a SyntaxError has it
        got = f"{type(error).__name__}: {error}{where}"
        raise SpecError("module", "one that can be imported with Triton alone", got, "correct it") from error
    return module


def _variant(what: str, entry: object) -> Variant:
    if not isinstance(entry, dict) or not callable(getattr(entry.get("kernel"), "fn", None)):
        hint = "write {'kernel': f, 'types': {...}, 'grid': (...)} with a @triton.jit function f"
        raise SpecError(what, "a dict with a @triton.jit function as kernel", repr(entry), hint)
    if unknown := [key for key in entry if key not in _KEYS]:
        raise SpecError(what, f"only {', '.join(_KEYS)}", unknown[0], "remove it")
    if missing := [key for key in _KEYS if key not in entry and key not in _OPTIONAL]:
        raise SpecError(what, f"{missing[0]}", "none", "a variant needs kernel, types and grid")
    entry = _OPTIONAL | entry
    kernel = entry["kernel"]
    # Not Triton's own list of them, which its interpreter does not have.
    parameters = {p.name: "constexpr" in str(p.annotation) for p in inspect.signature(kernel.fn).parameters.values()}
    what = f"{what}: {kernel.__name__}"
    _check_names(what, "types", entry["types"], [n for n, constant in parameters.items() if not constant])
    _check_names(what, "constants", entry["constants"], [n for n, constant in parameters.items() if constant])
    types = {name: entry["types"][name] for name in parameters if name in entry["types"]}
    for name, type_ in types.items():
        _category(type_, f"{what}: {name}")
    integers = {name for name, type_ in types.items() if type_ in INTEGERS}
    for name in entry["divisible_by_16"]:
        if name not in integers and types.get(name) not in POINTERS:
            raise SpecError(f"{what}: divisible_by_16", "pointers and integers of the kernel", name, "leave it out")
    constants = {k: v for k, v in entry["constants"].items() if isinstance(v, int)}
    grid = entry["grid"]
    if not isinstance(grid, tuple) or not 1 <= len(grid) <= 3:
        raise SpecError(f"{what}: grid", "a tuple of one to three sizes", repr(grid), 'write ("rows",)')
    for option in ("num_warps", "num_stages"):
        if type(entry[option]) is not int or entry[option] < 1:
            raise SpecError(f"{what}: {option}", "an integer above 0", repr(entry[option]), "4 warps are usual")
    return Variant(
        kernel, types, entry["constants"], tuple(entry["divisible_by_16"]),
        Expression(f"{what}: when", entry["when"], integers, constants),
        tuple(Expression(f"{what}: grid", size, integers, constants) for size in (*grid, 1, 1)[:3]),
        entry["num_warps"], entry["num_stages"],
    )  # fmt: skip


def _check_names(what: str, key: str, got: Mapping[str, Any], expected: list[str]) -> None:
    if set(got) != set(expected):
        wanted = (
            f"{', '.join(expected) or 'nothing'} (the {'constexprs' if key == 'constants' else 'other parameters'})"
        )
        raise SpecError(f"{what}: {key}", wanted, ", ".join(map(str, got)) or "nothing", "name each of them once")


def _category(type_: object, what: str = "") -> str:
    for category, types in (("pointer", POINTERS), ("integer", INTEGERS), ("float", FLOATS)):
        if type_ in types:
            return category
    known = ", ".join((*POINTERS, *INTEGERS, *FLOATS))
    raise SpecError(what, f"one of {known}", repr(type_), "pass a bool as i32, and a smaller number as i32 or fp32")


def source_of(variant: Variant) -> str:
    """The kernel's name and where it is written, for a message."""
    return f"{variant.kernel.__name__} (line {inspect.getsourcelines(variant.kernel.fn)[1]})"
