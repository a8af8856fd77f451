"""Places in the source: finds the user's line in a stack of frames."""

from __future__ import annotations

import ast
import os
import re
import sysconfig
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pyxla.packages import kernel_packages


def package_folders(names: Iterable[str]) -> tuple[str, ...]:
    """The folders of packages that can be imported, with a separator at the end.

    Each both as it is found and with links resolved: another process may have found it without the link.
    """
    specs = [find_spec(name) for name in names]
    folders = [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    return tuple(
        dict.fromkeys(name + os.sep for f in folders for name in (str(Path(f).absolute()), os.path.realpath(f)))
    )


# The packages' actual folders: PYTHONPATH may name any, and a user's folder may be called torch.
_LIBRARIES = (
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib")),
    *package_folders(("torch", "functorch", "torch_xla", "pyxla", *(package.name for package in kernel_packages()))),
)
# A call of an op goes through its file, <package>/<op>/<op>.py: the place is the caller of that.
_ANYWHERE = re.compile(r"[/\\](site-packages|dist-packages|pyxla_kernels)[/\\]")

# file, line.
Place = tuple[str, int]


def is_library(file: str) -> bool:
    """Whether a frame belongs to Python, to an installed package, to pyxla, or to generated code."""
    return file.startswith(("<", *_LIBRARIES)) or _ANYWHERE.search(file) is not None


def user_place(frames: Iterable[Place]) -> Place | None:
    """The innermost frame that is not a library's; `frames` begins with the innermost."""
    return next((place for place in frames if not is_library(place[0])), None)


def only_call(name: str, files: Iterable[str]) -> Place | None:
    """The only line in these files that calls a function of this name; None if there are several, or none."""
    found = [(file, line) for file in set(files) for called, line in _calls(file) if called == name]
    return found[0] if len(found) == 1 else None


@cache
def syntax_tree(file: str) -> ast.Module | None:
    """The file's syntax tree; None if Python cannot read or parse the file."""
    try:
        return ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def called_name(node: ast.Call) -> str:
    """`c` of the call a.b.c(...); empty for a call of something without a name."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@cache
def _calls(file: str) -> tuple[tuple[str, int], ...]:
    tree = syntax_tree(file)
    return tuple((called_name(n), n.lineno) for n in ast.walk(tree) if isinstance(n, ast.Call)) if tree else ()
