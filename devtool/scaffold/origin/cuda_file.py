"""The functions of a CUDA file, as tree-sitter reads them. It needs no compiler and no headers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devtool.scaffold.origin.refusals import refused

_QUALIFIERS = re.compile(r"\b(const|volatile|__restrict__|__restrict|restrict)\b")


@dataclass(frozen=True)
class CppParameter:
    """A parameter: its name ("" without one), the type without const and pointers, and how it is passed."""

    name: str
    line: int
    type: str
    is_const: bool
    pointers: int
    is_reference: bool
    default: str | None

    def __str__(self) -> str:
        const = "const " if self.is_const else ""
        return f"{const}{self.type}{'*' * self.pointers}{'&' * self.is_reference} {self.name}".strip()


@dataclass(frozen=True)
class CppFunction:
    """A function with a body.

    Attributes:
        name, line: where it is; `scope` is "a::b::" of the namespaces around it.
        result: its type, as text.
        parameters: those that it declares.
        template: its template parameters, "typename T", one each.
        qualifiers: __global__, __device__, static and the like.
        calls: the names of the functions and kernels that it calls.
        launches: whether it launches a kernel.
        is_anonymous: whether it is in an anonymous namespace.
    """

    name: str
    line: int
    scope: str
    result: str
    parameters: tuple[CppParameter, ...]
    template: tuple[str, ...]
    qualifiers: frozenset[str]
    calls: frozenset[str]
    launches: bool
    is_anonymous: bool

    @property
    def is_kernel(self) -> bool:
        return "__global__" in self.qualifiers


@dataclass(frozen=True)
class CudaFile:
    """A file: its functions, what it includes, and the CUDA calls that a handler may not make, each with its line."""

    path: Path
    functions: tuple[CppFunction, ...]
    own_includes: tuple[str, ...]
    system_includes: tuple[str, ...]
    forbidden: tuple[tuple[str, int], ...]


_FORBIDDEN = re.compile(r"cuda(Malloc|Free|Memcpy$|Memset$|DeviceSynchronize|StreamSynchronize|HostAlloc)\w*")


def read_cuda(path: Path) -> CudaFile:
    """Parses a file.

    Raises:
        DevtoolError: it is not text.
    """
    import tree_sitter
    import tree_sitter_cuda

    data = path.read_bytes()
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise refused(str(path), "text in UTF-8", error, "name the source file") from None
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))
    root = parser.parse(data).root_node
    functions = [_function(node) for node in _walk(root) if node.type == "function_definition"]
    own, system, forbidden = [], [], []
    for node in _walk(root):
        if node.type == "preproc_include" and (name := node.child_by_field_name("path")):
            text = _text(name)
            (own if text.startswith('"') else system).append(text.strip('"<>'))
        elif node.type == "call_expression":
            name = _text(node.child_by_field_name("function"))
            if _FORBIDDEN.fullmatch(name):
                forbidden.append((name, _line(node)))
    return CudaFile(path, tuple(f for f in functions if f), tuple(own), tuple(system), tuple(forbidden))


def _walk(node: Any) -> Iterator[Any]:
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        todo += reversed(node.children)


def _text(node: Any) -> str:
    return node.text.decode() if node else ""


def _line(node: Any) -> int:
    return node.start_point[0] + 1


def _function(node: Any) -> CppFunction | None:
    declarator = node.child_by_field_name("declarator")
    while declarator and declarator.type in ("pointer_declarator", "reference_declarator"):
        declarator = declarator.child_by_field_name("declarator") or declarator.children[-1]
    if declarator is None or declarator.type != "function_declarator":
        return None
    name = declarator.child_by_field_name("declarator")
    if name is None or name.type not in ("identifier", "qualified_identifier"):
        return None
    body = node.child_by_field_name("body")
    head = node.text[: (body.start_byte if body else node.end_byte) - node.start_byte].decode()
    before = head[: head.find(_text(name))]
    calls, launches = set(), False
    for inner in _walk(body) if body else ():
        if inner.type == "call_expression":
            called = _text(inner.child_by_field_name("function"))
            calls.add(re.split(r"<|\(", called)[0].rpartition("::")[2].strip())
            launches |= any(child.type == "kernel_call_syntax" for child in inner.children)
    # A launch in a form that the grammar does not know.
    launches |= "<<<" in _text(body)
    scopes, template, is_anonymous = [], (), False
    above = node.parent
    while above is not None:
        if above.type == "namespace_definition":
            scopes.append(_text(above.child_by_field_name("name")))
            is_anonymous |= not scopes[-1]
        elif above.type == "template_declaration" and not template:
            parameters = above.child_by_field_name("parameters")
            template = tuple(_text(child) for child in parameters.named_children)
        elif above.type in ("class_specifier", "struct_specifier"):
            return None
        above = above.parent
    scope = "".join(f"{name}::" for name in reversed(scopes) if name)
    qualifiers = frozenset(re.findall(r"__\w+__|\bstatic\b|\binline\b", before))
    parameters = declarator.child_by_field_name("parameters")
    kinds = ("parameter_declaration", "optional_parameter_declaration")
    return CppFunction(
        name=_text(name), line=_line(name), scope=scope,
        result=" ".join(re.sub(r'__\w+__|\bstatic\b|\binline\b|extern|"C"', "", before).split()),
        parameters=tuple(_parameter(p) for p in parameters.children if p.type in kinds and _text(p) != "void"),
        template=template, qualifiers=qualifiers, calls=frozenset(calls), launches=launches, is_anonymous=is_anonymous,
    )  # fmt: skip


def _parameter(node: Any) -> CppParameter:
    pointers, is_reference, name = 0, False, ""
    declarator = node.child_by_field_name("declarator")
    while declarator is not None:
        pointers += declarator.type in ("pointer_declarator", "abstract_pointer_declarator", "array_declarator")
        is_reference |= declarator.type in ("reference_declarator", "abstract_reference_declarator")
        if declarator.type == "identifier":
            name = _text(declarator)
        following = declarator.child_by_field_name("declarator")
        if following is None:
            kinds = ("identifier", "pointer_declarator", "reference_declarator", "array_declarator")
            following = next((child for child in declarator.named_children if child.type in kinds), None)
        declarator = following if declarator.type != "identifier" else None
    const = any(child.type == "type_qualifier" and _text(child) == "const" for child in node.children)
    default = node.child_by_field_name("default_value")
    type_ = " ".join(_QUALIFIERS.sub("", _text(node.child_by_field_name("type"))).split())
    return CppParameter(name, _line(node), type_, const, pointers, is_reference, _text(default) if default else None)
