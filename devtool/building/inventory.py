"""What `devtool list` shows: each op, with what its library's op table says. Only schemas need torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from devtool import project
from devtool.pyxla_files import without_torch


def inventory(schemas: bool = False) -> list[dict[str, Any]]:
    """One entry per op folder: op, implements, state, reason, targets, platforms, architectures, compiler, nixpkgs,
    library.

    `implements` is the op that the folder implements, whose entry comes first, or None. Fields that only a library can
    fill are empty if it cannot be read; `reason` then says why, or is the command that builds it.

    Args:
        schemas: add the field `schema`; pyxla and torch are imported for it.
    """
    implements = project.implementations()
    ops = [folder for folder in project.op_names() if folder not in implements]
    folders = dict.fromkeys([*project.with_implementations(ops), *implements])
    with nullcontext() if schemas else without_torch():
        return [
            {"op": folder, "implements": implements.get(folder)}
            | ({"schema": _schema(folder)} if schemas else {})
            | library_state(folder)
            for folder in folders
        ]


def _schema(folder: str) -> str | None:
    import torch

    import pyxla  # noqa: F401 - defines the ops

    op, _, implementation = project.op_of_folder(folder).partition(".")
    found = getattr(getattr(torch.ops, project.repository().namespace), op, None)
    overload = getattr(found, implementation or "default", None)
    return str(overload._schema) if overload else None


def library_state(op: str) -> dict[str, Any]:
    """The fields of `inventory` about the op's library."""
    from pyxla.errors import LibraryError, VersionError
    from pyxla.library.find import check_fresh, library_path, load_library
    from pyxla.library.manifest import read_manifest

    namespace = project.repository().namespace
    found = library_path(op, namespace)
    if found is None:
        return _entry("not built", f"devtool build {op}", None)
    path, origin = found
    try:
        library, manifest = load_library(op, path, origin, namespace), read_manifest(path)
    except LibraryError as error:
        state = "unsupported" if isinstance(error, VersionError) else "corrupt"
        return _entry(state, error.message, path)
    try:
        check_fresh(library)
    except LibraryError as error:
        return _entry("stale", error.message, path, library.table, manifest)
    return _entry("built" if origin == "checkout" else origin, "", path, library.table, manifest)


def is_fresh(op: str, path: Path) -> bool:
    """Whether the library of an op at this path is whole and was built from the sources as they are now."""
    with without_torch():
        from pyxla.errors import LibraryError
        from pyxla.library.find import check_fresh, load_library

        try:
            check_fresh(load_library(op, path, "checkout", project.repository().namespace))
        except (LibraryError, OSError):
            return False
    return True


def _entry(state: str, reason: str, path: Any, table: Any = None, manifest: Any = None) -> dict[str, Any]:
    handlers = table.handlers if table else ()
    return {
        "state": state,
        "reason": reason,
        "targets": sorted({handler.target for handler in handlers}),
        "platforms": sorted({handler.platform for handler in handlers}, reverse=True),
        "architectures": list(table.cuda_architectures) if table else [],
        "compiler": table.compiler if table else None,
        "nixpkgs": manifest.nixpkgs if manifest else None,
        "library": str(path) if path else None,
    }


def architectures_text(architectures: Sequence[str]) -> str:
    """`sm_80, sm_90a, PTX of sm_100`: what a library has machine code for, and PTX for those still to come."""
    kinds = [architecture.partition("-") for architecture in architectures]
    return ", ".join(f"{'PTX of ' if kind == 'virtual' else ''}sm_{number}" for number, _, kind in kinds)


def print_inventory(entries: Sequence[dict[str, Any]]) -> None:
    """Prints the entries as a table; for what is not built, the command to build it follows on stderr."""
    import sys

    import click
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=0)
    for title in ("op", "targets", "platforms", "state"):
        table.add_column(title, overflow="fold")
    for entry in entries:
        table.add_row(
            f"  {entry['op']}" if entry["implements"] else entry["op"],
            ", ".join(entry["targets"]) or "-",
            ", ".join(entry["platforms"]) or "-",
            entry["state"],
            style="" if entry["state"] == "built" else "yellow",
        )
    # In a pipe no line is wrapped, so that grep finds a target.
    Console(width=None if sys.stdout.isatty() else 1000).print(table)
    by_code: dict[str, list[str]] = {}
    for entry in entries:
        by_code.setdefault(architectures_text(entry["architectures"]), []).append(entry["op"])
    # Most ops have the same: these are not listed.
    most = max(by_code, key=lambda code: len(by_code[code]), default="")
    for code, ops in by_code.items():
        if code:
            click.echo(f"CUDA code: {code}" + ("" if code == most else f": {', '.join(ops)}"))
    rest = [entry["op"] for entry in entries if entry["state"] not in ("built", "preloaded", "installed")]
    if rest:
        click.echo(f"hint: devtool build {' '.join(rest)}", err=True)
