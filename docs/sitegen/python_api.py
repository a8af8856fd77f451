"""A page for each public module of pyxla, from its docstrings. Public is a module that has `__all__`."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType

from devtool.pages.docstrings import split_names
from devtool.pages.staging import Site


def public_modules() -> list[ModuleType]:
    """pyxla and its modules that say in `__all__` what is for others. Only these are imported."""
    import pyxla

    root = Path(pyxla.__file__).parent
    sources = [path for path in sorted(root.rglob("*.py")) if _has_all(path)]
    names = [".".join(path.relative_to(root.parent).with_suffix("").parts) for path in sources]
    return [importlib.import_module(name.removesuffix(".__init__")) for name in names]


def _has_all(path: Path) -> bool:
    nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
    return any(ast.unparse(target) == "__all__" for node in nodes for target in node.targets)


def write(site: Site) -> None:
    """Writes the modules' pages, and into python.md the list of them."""
    rows = ""
    for module in public_modules():
        name = module.__name__
        rows += f"| [{name}](python/{name}.md) | {first_line(module)} |\n"
        site.write(f"reference/python/{name}.md", _page(module))
    overview = site.document("docs/reference/python.md")
    toctree = "\n```{toctree}\n:hidden:\n:glob:\n\npython/*\n```\n"
    site.write(
        "reference/python.md",
        overview.replace("<!-- modules -->\n", f"| module | what it holds |\n|---|---|\n{rows}") + toctree,
    )


def first_line(documented: object) -> str:
    """The first sentence of a docstring, on one line."""
    return " ".join(inspect.getdoc(documented).partition("\n\n")[0].split())


def one_name_a_line(app, what, name, value, options, lines: list[str]) -> None:
    """`shape, dtype: of the array` in a docstring is a line for each of the two."""
    lines[:] = split_names(lines)


def without_own_words(app, what, name, value, skip, options) -> bool | None:
    """Leaves out what Python itself says of a named tuple's fields; the class's docstring has them."""
    return True if (inspect.getdoc(value) or "").startswith("Alias for field number") else None


def _page(module: ModuleType) -> str:
    name = module.__name__
    lines = [f"# {name}", "", "```{eval-rst}", f".. automodule:: {name}", "   :no-members:", "", ".. autosummary::"]
    lines += ["   :nosignatures:", "", *(f"   {member}" for member in module.__all__), ""]
    for member in module.__all__:
        value = getattr(module, member)
        if inspect.isclass(value):
            kind = "exception" if issubclass(value, BaseException) else "class"
            lines += [f".. auto{kind}:: {name}.{member}", "   :members:", ""]
        elif callable(value):
            lines += [f".. autofunction:: {name}.{member}", ""]
        else:
            lines += [f".. autodata:: {name}.{member}", "   :no-value:", ""]
    return "\n".join([*lines, "```", ""])
