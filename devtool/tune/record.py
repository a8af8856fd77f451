"""The table and how it was measured: tuning.json in the op's folder, from which tuning.h is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devtool import project
from devtool.errors import DevtoolError
from devtool.files import write_atomic
from devtool.tune.header import header_text
from devtool.tune.space import ShapeClass, Space, Table

# The version of the file. When it changes, the code that reads it must change too.
SCHEMA = 1


def header_path(op: str) -> Path:
    """The header that the kernel is compiled with."""
    return project.kernels() / op / "tuning.h"


def record_path(op: str) -> Path:
    """The record beside it."""
    return project.kernels() / op / "tuning.json"


def read_table(space: Space) -> Table:
    """The values of each class: the record's, or where it has none that tuning.py allows, those to start with.

    Raises:
        DevtoolError: the file is not a record of this schema.
    """
    path = record_path(space.op)
    if not path.is_file():
        return dict(space.start)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        right = document["schema"] == SCHEMA
        entries = [(entry["class"], entry["values"]) for entry in document["table"]] if right else []
        kept = {
            tuple(shape[name] for name in space.classes): tuple(values[name] for name in space.parameters)
            for shape, values in entries
            if shape.keys() == space.classes.keys() and values.keys() == space.parameters.keys()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _not_a_record(path, f"{type(error).__name__}: {error}") from error
    if not right:
        raise _not_a_record(path, f"schema {document['schema']}")
    known = {*space.variants}
    return {shape: kept[shape] if kept.get(shape) in known else values for shape, values in space.start.items()}


def is_current(space: Space, table: Table) -> bool:
    """Whether the header is the one of this table."""
    path = header_path(space.op)
    return path.is_file() and path.read_text(encoding="utf-8") == header_text(space, table)


def write_table(
    space: Space, table: Table, measured: Mapping[str, Any] | None, found: Mapping[ShapeClass, Mapping[str, Any]]
) -> None:
    """Writes the record and the header.

    Args:
        space: what the op's tuning.py declares.
        table: the values of every class.
        measured: when and on which device; None: not at all.
        found: class -> what was measured of it, for the record.
    """
    entries = [
        {"class": dict(zip(space.classes, shape, strict=True)), "values": space.named(values), **found.get(shape, {})}
        for shape, values in table.items()
    ]
    head = json.dumps({"schema": SCHEMA, "measured": measured}, indent=1).removesuffix("\n}")
    rows = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
    write_atomic(record_path(space.op), f'{head},\n "table": [\n{rows}\n ]\n}}\n')
    write_header(space, table)


def write_header(space: Space, table: Table) -> None:
    """Writes the header alone: the record keeps what was measured."""
    write_atomic(header_path(space.op), header_text(space, table))


def _not_a_record(path: Path, got: str) -> DevtoolError:
    message = f"tune: {path}: expected a record that devtool tune wrote (schema {SCHEMA}), got {got}"
    return DevtoolError(message, "git restore it, or remove it: the table then starts with the values of tuning.py")
