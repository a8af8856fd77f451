"""Reads the page "source" of Nsight Compute: the samples of each line, and the instructions that it became."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devtool import project
from devtool.profile.counters import number_of
from devtool.profile.figures import stall_name
from devtool.profile.profile_file import main_stall

_SAMPLES, _EXECUTED, _STALL = "Warp Stall Sampling (All Samples)", "Instructions Executed", "stall_"
_NOT_ISSUED = "(Not Issued)"
# How many lines around a line with samples belong to the annotated source.
_AROUND = 2
# The instructions of a line that are named.
_CODE = 3


@dataclass
class Line:
    """A line of the source, or of the machine code, and what was counted there.

    Attributes:
        file: its path where it was compiled; "" for machine code.
        number: counted from 1.
        text: as in the page, "" if Nsight Compute did not find the file.
        samples: of warps at its instructions.
        executed: warp instructions.
        stalls: reason -> samples.
        code: instruction -> samples: "LDG.E.128".
    """

    file: str
    number: int
    text: str
    samples: float = 0.0
    executed: float = 0.0
    stalls: Counter[str] = field(default_factory=Counter)
    code: Counter[str] = field(default_factory=Counter)


def read_lines(text: str) -> list[Line]:
    """The lines of a page of source beside machine code that became instructions, with the sums of these."""
    found: dict[tuple[str, int], Line] = {}
    file, line, names = "", None, []
    for row in csv.reader(text.splitlines()):
        if row[:1] == ["File Path"]:
            file = row[1]
        elif row[:2] == ["Line No", "Source"]:
            names, line = row, None
        elif names and len(row) == len(names):
            if row[0].isdigit():
                line = found.setdefault((file, int(row[0])), Line(file, int(row[0]), row[1]))
            if line and row[2].startswith("0x"):
                _add(line, row[3], dict(zip(names[4:], row[4:], strict=True)))
    return [line for line in found.values() if line.code]


def read_instructions(text: str) -> list[Line]:
    """The instructions of a page of machine code, each as a line, numbered from 1."""
    found: list[Line] = []
    names: list[str] = []
    for row in csv.reader(text.splitlines()):
        if row[:2] == ["Address", "Source"]:
            names = row
        elif names and len(row) == len(names):
            found.append(Line("", len(found) + 1, row[1]))
            _add(found[-1], row[1], dict(zip(names[2:], row[2:], strict=True)))
    return found


def annotated(lines: list[Line]) -> list[dict[str, Any]]:
    """The lines with samples as in the file of a profile, with those around them, in the order of the files."""
    total = sum(line.samples for line in lines) or 1.0
    sampled = {(_shown(line.file), line.number): line for line in lines if line.samples}
    texts = {file: _texts(file) for file, _ in sampled}
    rows = dict.fromkeys(place for file, number in sorted(sampled) for place in _around(file, number, texts[file]))
    found = []
    for file, number in rows:
        line = sampled.get((file, number))
        text = texts[file][number - 1] if number <= len(texts[file]) else line.text if line else ""
        entry = {"file": file, "line": number, "text": text, "share": 0.0, "executed": 0, "stall": "", "code": []}
        if line:
            code = [name for name, samples in line.code.most_common(_CODE) if samples]
            entry |= {"share": line.samples / total, "executed": int(line.executed)}
            entry |= {"stall": main_stall(line.stalls), "code": code}
        found.append(entry)
    return found


def _add(line: Line, instruction: str, values: dict[str, str]) -> None:
    samples = number_of(values.get(_SAMPLES, "")) or 0.0
    words = instruction.split()
    # A predicate comes first: "@!P0 BRA".
    name = next((word for word in words if not word.startswith("@")), "?").rstrip(";")
    line.samples += samples
    line.executed += number_of(values.get(_EXECUTED, "")) or 0.0
    line.code[name] += samples
    for column, text in values.items():
        if column.startswith(_STALL) and not column.endswith(_NOT_ISSUED):
            line.stalls[stall_name(column.removeprefix(_STALL))] += number_of(text) or 0.0


def _around(file: str, number: int, text: list[str]) -> Iterator[tuple[str, int]]:
    for place in range(max(1, number - _AROUND), number + _AROUND + 1):
        if place == number or place <= len(text):
            yield file, place


def _shown(file: str) -> str:
    """The path in the repository; the library may have been built in another folder."""
    for folder in ("kernels", "pyxla"):
        _, inside, tail = file.rpartition(f"/{folder}/")
        if inside and (project.root() / folder / tail).is_file():
            return f"{folder}/{tail}"
    return file


def _texts(file: str) -> list[str]:
    """The lines of a file of the repository, or of the machine it was compiled on; empty if it is not here."""
    path = project.root() / file
    return path.read_text(errors="replace").splitlines() if file and Path(path).is_file() else []
