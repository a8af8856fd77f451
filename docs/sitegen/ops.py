"""A page for each op folder: what its ops compute, from their docstrings, the cases, the notes, the files."""

from __future__ import annotations

import importlib
import inspect
import re

from sphinx.ext.napoleon import Config, GoogleDocstring

from sitegen.python_api import split_names
from sitegen.staging import Site


def write(site: Site) -> None:
    """Writes the ops' pages and their list."""
    import pyxla  # noqa: F401  defines the ops

    rows = ""
    from pyxla.torch_ops.custom_op import ops_of_library

    for folder in site.ops():
        ops = ops_of_library(folder)
        about, _, more = inspect.getdoc(importlib.import_module(f"pyxla_kernels.{folder}.{folder}")).partition("\n")
        rows += f"| [{folder}]({folder}.md) | {about.partition(': ')[2]} |\n"
        site.write(f"ops/{folder}.md", _page(site, folder, ops, about, more))
    listed = f"# Ops\n\n| op | what it computes |\n|---|---|\n{rows}"
    site.write("ops/index.md", listed + "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n")


def _page(site: Site, folder: str, ops: list, about: str, more: str) -> str:
    from pyxla import Implementation

    page = f"ops/{folder}.md"
    parts = [f"# {folder}\n\n{_sentence(about)}\n"]
    if isinstance(ops[0], Implementation):
        parts += [more.strip() + "\n", _implementation(ops[0])]
    else:
        parts += [_reference(op) for op in ops]
        parts += _tables(folder)
    notes = f"kernels/{folder}/NOTES.md"
    if (site.root / notes).is_file():
        text = re.sub(r"^#", "##", (site.root / notes).read_text(), flags=re.MULTILINE)
        parts.append(site.links(re.sub(r"^## .*", "## Notes", text, count=1), notes, page))
    parts.append(_files(site, folder))
    return "\n".join(parts)


def _sentence(about: str) -> str:
    text = about.partition(": ")[2]
    return text[:1].upper() + text[1:]


def _implementation(op) -> str:
    """How it is called; the rest is said of its op."""
    return (
        f"It is an implementation of [{op.op.name}]({op.op.library}.md): arguments, results, errors, cases and benches "
        f"are those of that page.\n\n- One call: `torch.ops.xla_gpu.{op.name}(...)`\n"
        f"- The process: `PYXLA_IMPLEMENTATION={op.name.replace('.', '=')}`, or "
        f"`pyxla.use_implementation({op.op.name!r}, {op.name.partition('.')[2]!r})`\n- Custom call: `{op.target}`\n"
    )


def _reference(op) -> str:
    """The op's signature, schema and docstring as a Python function."""
    signature = inspect.signature(op.reference)
    plain = signature.replace(
        parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
        return_annotation=signature.empty,
    )
    config = Config(napoleon_use_rtype=False)
    text = str(GoogleDocstring(split_names(inspect.getdoc(op.reference).splitlines()), config, what="function"))
    lines = [
        f".. py:function:: torch.ops.xla_gpu.{op.name}{plain}", "",
        f"   Schema: ``{op.schema.text}``", "",
        f"   Custom call: ``{op.target}``", "",
        *("   " + line for line in text.splitlines()),
    ]  # fmt: skip
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


def _tables(folder: str) -> list[str]:
    """What is tested, refused and timed, each with its reason, from cases.py."""
    cases = importlib.import_module(f"pyxla_kernels.{folder}.cases")
    named = vars(cases)
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
