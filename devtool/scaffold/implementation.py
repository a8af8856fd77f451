"""What the templates need for another implementation of an existing op.

Its device code begins as a copy of the op's CUDA sources, or as the stub of a Triton kernel. It has to define the
functions that the op's header declares for CUDA only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from devtool import project
from devtool.errors import MISUSED, DevtoolError
from devtool.scaffold.names import implementation_problem
from devtool.scaffold.op_folder import check_name

_ROUTES = ("cuda", "triton")


@dataclass(frozen=True)
class Function:
    """A function that the op's header declares; `launches` if its result is CUDA's status."""

    head: str
    launches: bool


@dataclass(frozen=True)
class Implementation:
    """Everything that the templates need.

    Attributes:
        name: the name of the folder.
        op, implementation: the names of the op and of the implementation.
        route: the route, which chooses the templates.
        namespace, functions: what the op's header declares.
        copies: files to copy -> their names in the folder.
    """

    name: str
    op: str
    implementation: str
    route: str
    namespace: str
    functions: tuple[Function, ...]
    copies: dict[Path, str]
    templates: tuple[str, ...] = ()


def is_op(name: str) -> bool:
    """Whether there is an op of this name to implement."""
    return name in project.op_names() and name not in project.implementations()


def implementation_of(op: str, name: str, route: str) -> Implementation:
    """What the templates need for a new implementation of an op.

    Raises:
        DevtoolError: a name or a route that an implementation cannot have, an op that wraps a library, or an op whose
            header declares no function for CUDA.
    """
    if route not in _ROUTES:
        message = f"new-op: --route: expected {' or '.join(_ROUTES)} for an implementation of {op}, got {route}"
        hint = "--route cuda, then add wrapped.json as kernels/paged_attention_flashinfer has it"
        raise DevtoolError(message, hint, MISUSED)
    if problem := implementation_problem(name):
        message = f"new-op: --implementation: expected {problem}, got {name!r}"
        raise DevtoolError(message, f"devtool new-op {op} --implementation fast", MISUSED)
    folder = project.kernels() / op
    if (folder / "wrapped.json").is_file():
        message = f"new-op: NAME: expected an op whose host code is its own, got {op}, which wraps a library"
        raise DevtoolError(message, f"make it an op of its own: devtool new-op {op}_{name}", MISUSED)
    check_name(f"{op}_{name}")
    namespace, functions = _functions(folder / f"{op}.h")
    sources = [path for path in sorted(folder.rglob("*.cu")) if route == "cuda"]
    copies = {path: re.sub(f"^{op}", f"{op}_{name}", path.relative_to(folder).as_posix()) for path in sources}
    kind = "copied" if copies else route
    return Implementation(f"{op}_{name}", op, name, f"{kind} implementation", namespace, functions, copies)


def _functions(header: Path) -> tuple[str, tuple[Function, ...]]:
    text = header.read_text() if header.is_file() else ""
    _, *guarded = re.split(r"^#if \w+_WITH_CUDA$", text, maxsplit=1, flags=re.MULTILINE)
    declared = "".join(guarded)
    namespace = re.search(r"^namespace ([\w:]+) \{$", declared, re.MULTILINE)
    found = re.findall(r"^([\w:]+) (\w+)\(([^()]*)\);", declared, re.MULTILINE)
    if not (namespace and found):
        message = f"new-op: kernels/{header.parent.name}/{header.name}: expected the functions for CUDA, got none"
        hint = "declare them there, for CUDA only, as kernels/rms_norm/rms_norm.h does"
        raise DevtoolError(message, hint)
    return namespace[1], tuple(
        Function(f"{result} {name}({_unused(parameters)})", result == "cudaError_t")
        for result, name, parameters in found
    )


def _unused(parameters: str) -> str:
    return ", ".join(f"[[maybe_unused]] {' '.join(parameter.split())}" for parameter in parameters.split(","))
