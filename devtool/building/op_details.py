"""What `devtool list OP` shows of an op folder: its ops with their cases, its library, its files."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from devtool import project
from devtool.building.inventory import architectures_text, inventory


def detailed(folders: Sequence[str]) -> list[dict[str, Any]]:
    """The entries of `inventory` of these folders, each with `ops`, `bad_inputs`, `benches` and `files`.

    `ops` are the ops whose handlers are in the folder's library, the folder's own first: name, schema, target and the
    number of cases. Bad inputs and benches are counted per folder; those of an implementation are the op's. Paths of
    files are relative to the folder.
    """
    os.environ.setdefault("PJRT_DEVICE", "CPU")  # otherwise torch_xla guesses the device, and prints that
    by_name = {entry["op"]: entry for entry in inventory(schemas=True)}
    return [by_name[folder] | _details(folder, by_name[folder]["implements"] or folder) for folder in folders]


def _details(folder: str, home: str) -> dict[str, Any]:
    try:
        cases = importlib.import_module(project.module(home, "cases"))
    except ModuleNotFoundError as error:
        if error.name != project.module(home, "cases"):
            raise
        cases = None
    from pyxla.testing.case import cases_of
    from pyxla.torch_ops.custom_op import ops_of_library

    path = project.kernels() / folder
    return {
        "ops": [
            {"name": op.name, "schema": op.schema.text, "target": op.target, "cases": len(cases_of(op)) if cases else 0}
            for op in ops_of_library(folder, project.repository().namespace)
        ],
        "bad_inputs": len([b for name, found in vars(cases).items() if name.endswith("BAD_INPUTS") for b in found])
        if cases
        else 0,
        "benches": len(getattr(cases, "BENCHES", ())),
        "files": [
            p.relative_to(path).as_posix()
            for p in sorted(path.rglob("*"))
            if p.is_file() and "__pycache__" not in p.parts
        ],
    }


def print_details(entries: Sequence[dict[str, Any]]) -> None:
    """Prints each entry as lines of a name and a text, no wider than the terminal or, in a pipe, than 80 columns."""
    import shutil
    import textwrap

    import click

    width = min(shutil.get_terminal_size((80, 24)).columns, 120)
    for number, entry in enumerate(entries):
        click.echo("\n" * bool(number) + project.op_of_folder(entry["op"]))
        for name, text in _lines(entry):
            begin = f"  {name:<11}"
            lines = textwrap.wrap(
                text, width, initial_indent=begin, subsequent_indent=" " * len(begin), break_on_hyphens=False,
                break_long_words=False,
            )  # fmt: skip
            click.echo("\n".join(lines))


def _lines(entry: dict[str, Any]) -> list[tuple[str, str]]:
    home = entry["implements"] or entry["op"]
    lines = [] if entry["ops"] else [("ops", f"none is declared: see the warning above, and kernels/{entry['op']}")]
    for op in entry["ops"]:
        lines += [("schema", op["name"] + op["schema"]), ("target", op["target"]), ("cases", str(op["cases"]))]
    counts = f"{entry['bad_inputs']} bad inputs, {entry['benches']} benches"
    lines += [("", f"{counts} (kernels/{home}/cases.py)"), ("state", entry["state"])]
    lines += [("", entry["reason"])] if entry["reason"] else []
    if entry["library"]:
        path = os.path.relpath(entry["library"], project.root())
        lines.append(("library", entry["library"] if path.startswith("..") else path))
        code = f"{', '.join(entry['platforms'])}; {entry['compiler']}"
        lines += [("code for", code), ("CUDA for", architectures_text(entry["architectures"]) or "no architecture")]
        lines += [("nixpkgs", entry["nixpkgs"])] if entry["nixpkgs"] else []
    return [*lines, ("files", f"kernels/{entry['op']}: {', '.join(entry['files'])}")]
