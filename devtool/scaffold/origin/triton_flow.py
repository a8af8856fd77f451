"""Which parameters of a Triton kernel are pointers, read or written, and which numbers are integers."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from devtool.scaffold.origin.python_module import Module

_LOADS = ("load", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor", "atomic_xchg",
          "atomic_cas")  # fmt: skip
_STORES = ("store", *_LOADS[1:])
_BLOCKS = ("make_block_ptr", "advance", "make_tensor_descriptor")
_SIZES = ("arange", "cdiv", "program_id", "num_programs", "zeros", "full", "multiple_of", "static_range",
          "range")  # fmt: skip


@dataclass(frozen=True)
class Uses:
    """Names of parameters: those loaded from, stored to, and used as integers."""

    loaded: frozenset[str]
    stored: frozenset[str]
    integers: frozenset[str]

    @property
    def pointers(self) -> frozenset[str]:
        return self.loaded | self.stored


def uses_of(module: Module, kernel: ast.FunctionDef, kernels: Mapping[str, ast.FunctionDef]) -> Uses:
    """How a kernel uses its parameters, also in the kernels of the file that it calls."""
    return _Flow(module, kernel, kernels, frozenset()).uses()


class _Flow:
    """Follows each parameter through the assignments of one kernel."""

    def __init__(
        self, module: Module, kernel: ast.FunctionDef, kernels: Mapping[str, ast.FunctionDef], above: frozenset[str]
    ):
        self._module, self._kernel, self._kernels = module, kernel, kernels
        self._above = above | {kernel.name}
        self._parameters = {p.arg for p in (*kernel.args.posonlyargs, *kernel.args.args, *kernel.args.kwonlyargs)}
        self._assigned: dict[str, list[ast.expr]] = {}
        for node in ast.walk(kernel):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._assigned.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.AugAssign | ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                self._assigned.setdefault(node.target.id, []).append(node.value)
            elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                self._assigned.setdefault(node.target.id, []).append(node.iter)

    def uses(self) -> Uses:
        integers, loaded, stored = self._counts(), set(), set()
        numbers = self._factors() | integers
        for node in ast.walk(self._kernel):
            if not isinstance(node, ast.Call):
                continue
            name = self._function(node.func)
            if name in _LOADS or name in _STORES:
                address = _argument(node, 0, "pointer")
                mask = _argument(node, 1 if name in _LOADS else 2, "mask")
                pointers = self._bases(address, numbers)
                loaded |= pointers if name in _LOADS else set()
                stored |= pointers if name in _STORES else set()
                integers |= (self._all(address) | self._all(mask)) - pointers
            elif name in self._kernels and name not in self._above:
                callee = self._kernels[name]
                below = _Flow(self._module, callee, self._kernels, self._above).uses()
                names = [parameter.arg for parameter in callee.args.args]
                passed = [*zip(names, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
                for parameter, value in passed:
                    bases = self._bases(value, numbers)
                    loaded |= bases if parameter in below.loaded else set()
                    stored |= bases if parameter in below.stored else set()
                    integers |= self._all(value) if parameter in below.integers else set()
        return Uses(frozenset(loaded), frozenset(stored), frozenset(integers - loaded - stored))

    def _counts(self) -> set[str]:
        """Parameters from which sizes of blocks and loops are computed."""
        found = set()
        for node in ast.walk(self._kernel):
            if isinstance(node, ast.Call) and self._function(node.func) in _SIZES:
                found |= set().union(*map(self._all, node.args))
        return found

    def _function(self, func: ast.expr) -> str:
        dotted = self._module.dotted(func) or ""
        return dotted.rpartition(".")[2] if dotted.startswith("triton.") or "." not in dotted else ""

    def _factors(self) -> set[str]:
        """Parameters that are multiplied, divided or compared, as no pointer is."""
        found = set()
        for node in ast.walk(self._kernel):
            if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add | ast.Sub):
                sides = [node.left, node.right]
            elif isinstance(node, ast.Compare) and not any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
                sides = [node.left, *node.comparators]
            else:
                continue
            found |= {side.id for side in sides if isinstance(side, ast.Name) and side.id in self._parameters}
        return found

    def _bases(self, node: ast.expr | None, numbers: set[str], seen: frozenset[str] = frozenset()) -> set[str]:
        """The parameters to which an address adds offsets; none that is a number elsewhere."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            # An address has one base; it is written first.
            return self._bases(node.left, numbers, seen) or self._bases(node.right, numbers, seen)
        if isinstance(node, ast.IfExp):
            return self._bases(node.body, numbers, seen) | self._bases(node.orelse, numbers, seen)
        if isinstance(node, ast.Call):
            if self._function(node.func) in _BLOCKS:
                return self._bases(_argument(node, 0, "base"), numbers, seen)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
                return self._bases(node.func.value, numbers, seen)
        if isinstance(node, ast.Name) and node.id not in seen:
            own = {node.id} & self._parameters - numbers
            values = self._assigned.get(node.id, ())
            return own.union(*(self._bases(value, numbers, seen | {node.id}) for value in values))
        return set()

    def _all(self, node: ast.AST | None, seen: frozenset[str] = frozenset()) -> set[str]:
        """All parameters from which a value is computed, except through memory."""
        if node is None:
            return set()
        if isinstance(node, ast.Call) and self._function(node.func) in _LOADS:
            return set()
        if isinstance(node, ast.Name):
            if node.id in seen:
                return set()
            found = {node.id} & self._parameters
            return found.union(*(self._all(v, seen | {node.id}) for v in self._assigned.get(node.id, ())))
        return set().union(*(self._all(child, seen) for child in ast.iter_child_nodes(node)))


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    named = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return named or (call.args[place] if len(call.args) > place else None)
