"""A page for each op folder: what its ops compute, from their docstrings, the cases, the notes, the files."""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType

from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util import logging

from devtool import project
from devtool.pages.docstrings import split_names
from devtool.pages.staging import Site

_log = logging.getLogger(__name__)


def write(site: Site) -> None:
    """Writes the ops' pages and their list."""
    import pyxla  # noqa: F401  defines the ops

    rows, folders = "", project.op_names()
    for folder in folders:
        try:
            about, page = _page(site, folder)
        except _Unreadable as error:
            _log.warning(f"kernels/{folder}: {error}")
            about, page = "", f"# {folder}\n"
        rows += f"| [{folder}]({folder}.md) | {about} |\n"
        site.write(f"ops/{folder}.md", page)
    listed = f"| op | what it computes |\n|---|---|\n{rows}\n```{{toctree}}\n:hidden:\n:glob:\n\n*\n```\n"
    site.write("ops/index.md", f"# Ops\n\n{listed if folders else 'There is none yet.'}")


class _Unreadable(Exception):
    """Why there is nothing to say of an op."""


def _imported(folder: str, file: str | None = None) -> ModuleType:
    try:
        return importlib.import_module(project.module(folder, file))
    except Exception as error:  # a file of the repository may raise anything
        got = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise _Unreadable(f"{file or folder}.py: expected a file that Python imports, got {got}") from error


def _page(site: Site, folder: str) -> tuple[str, str]:
    """What the folder's op computes, in a line, and its page."""
    from pyxla import Implementation
    from pyxla.torch_ops.custom_op import ops_of_library

    page = f"ops/{folder}.md"
    about, _, more = (inspect.getdoc(_imported(folder)) or "").partition("\n")
    ops = ops_of_library(folder, site.repository.namespace)
    if not ops:
        raise _Unreadable(f"{folder}.py: expected an op, got none")
    what = about.removeprefix(f"{folder}: ") or (inspect.getdoc(ops[0].reference) or "").partition("\n")[0]
    parts = [f"# {folder}\n\n{what[:1].upper()}{what[1:]}\n"]
    if isinstance(ops[0], Implementation):
        parts += [more.strip() + "\n", _implementation(ops[0])]
    else:
        parts += [_reference(op) for op in ops]
        parts += _implementations(ops)
        parts += _tables(site, folder)
    notes = f"kernels/{folder}/NOTES.md"
    if (site.root / notes).is_file():
        text = re.sub(r"^#", "##", (site.root / notes).read_text(), flags=re.MULTILINE)
        parts.append(site.links(re.sub(r"^## .*", "## Notes", text, count=1), notes, page))
    parts.append(_files(site, folder))
    return what, "\n".join(parts)


def _called(op) -> str:
    """The name by which pyxla finds it; that of another namespace is complete, whatever other packages have."""
    from pyxla.namespaces import NAMESPACE

    return op.name if op.namespace == NAMESPACE else op.qualified_name


def _implementation(op) -> str:
    """How it is called; the rest is said of its op."""
    from pyxla.torch_ops.implementation import VARIABLE

    called, name = _called(op.op), op.name.partition(".")[2]
    return (
        f"It is an implementation of [{op.op.name}]({op.op.library}.md): arguments, results, errors, cases and benches "
        f"are those of that page.\n\n- One call: `torch.ops.{op.namespace}.{op.name}(...)`\n"
        f"- The process: `{VARIABLE}={called}={name}`, or "
        f"`pyxla.use_implementation({called!r}, {name!r})`\n- Custom call: `{op.target}`\n"
    )


def _implementations(ops: list) -> list[str]:
    """Which other kernels the ops have."""
    lines = [f"- [{name}]({other.library}.md): `torch.ops.{other.namespace}.{other.name}(...)`\n"
             for op in ops for name, other in sorted(op.implementations.items())]  # fmt: skip
    return ["## Implementations\n\n" + "".join(lines)] if lines else []


def _reference(op) -> str:
    """The op's signature, schema and docstring as a Python function."""
    documentation = inspect.getdoc(op.reference)
    if not documentation:
        raise _Unreadable(f"{op.name}: expected a docstring, which the page shows, got none")
    signature = inspect.signature(op.reference)
    plain = signature.replace(
        parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
        return_annotation=signature.empty,
    )
    config = Config(napoleon_use_rtype=False)
    text = str(GoogleDocstring(split_names(documentation.splitlines()), config, what="function"))
    lines = [
        f".. py:function:: torch.ops.{op.namespace}.{op.name}{plain}", "",
        f"   Schema: ``{op.schema.text}``", "",
        f"   Custom call: ``{op.target}``", "",
        *("   " + line for line in text.splitlines()),
    ]  # fmt: skip
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


def _tables(site: Site, folder: str) -> list[str]:
    """What is tested, refused and timed, each with its reason, from cases.py."""
    if not (site.root / "kernels" / folder / "cases.py").is_file():
        return []
    named = vars(_imported(folder, "cases"))
    tables = []
    for title, suffix, head, row in (
        ("Cases", "CASES", "case | why", lambda case: (f"`{case.name}`", case.why)),
        ("What it refuses", "BAD_INPUTS", "input | error", lambda bad: (f"`{bad.name}`", f"`{bad.message}`")),
        ("What is timed", "BENCHES", "bench | what it stands for", lambda bench: (f"`{bench.name}`", bench.why)),
    ):
        found = [entry for name, value in named.items() if name.endswith(suffix) and name.isupper() for entry in value]
        rows = {row(entry): None for entry in found}
        if rows:
            body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in rows)
            tables.append(f"## {title}\n\n| {head} |\n|---|---|\n{body}\n")
    return tables


def _files(site: Site, folder: str) -> str:
    files = [p for p in sorted((site.root / "kernels" / folder).iterdir()) if p.is_file() and p.name != "NOTES.md"]
    listed = [f"- [{p.name}](../{site.show(f'kernels/{folder}/{p.name}')})" for p in files if p.name != "__init__.py"]
    return "## Files\n\n" + "\n".join(listed) + "\n"
