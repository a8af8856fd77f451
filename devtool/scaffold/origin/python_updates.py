"""Which tensors a Python function updates in place."""

from __future__ import annotations

import ast


def updates(function: ast.FunctionDef, parameters: list[str]) -> dict[str, int]:
    """Parameter -> the line of its first update: by a method such as add_, by out=, by x[i] = y or by x += y.

    An update of a view is not found; torch.library.opcheck finds it when the op's test runs.
    """
    augmented = [node.target for node in ast.walk(function) if isinstance(node, ast.AugAssign)]
    # A parameter that gets another value is no longer the caller's tensor.
    rebound = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in augmented
    }
    found: dict[str, int] = {}
    for node in ast.walk(function):
        for place in _updated(node):
            if isinstance(place, ast.Name) and place.id in set(parameters) - rebound:
                found[place.id] = min(place.lineno, found.get(place.id, place.lineno))
    return found


def _updated(node: ast.AST) -> list[ast.expr]:
    """The tensors that one node of the tree updates."""
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return [node.value]
    if not isinstance(node, ast.Call):
        return []
    places = []
    for out in (keyword.value for keyword in node.keywords if keyword.arg == "out"):
        places += out.elts if isinstance(out, ast.Tuple) else [out]
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if method.endswith("_") and not method.endswith("__"):
        places.append(node.func.value)
    return places
