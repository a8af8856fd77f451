"""Reads the page "source" of Nsight Compute: the samples of each line, and the instructions that it became."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from devtool import project
from devtool.profile.counters import number_of
from devtool.profile.figures import stall_name
from devtool.profile.profile_file import main_stall

_SAMPLES, _EXECUTED, _STALL = "Warp Stall Sampling (All Samples)", "Instructions Executed", "stall_"
_NOT_ISSUED = "(Not Issued)"
# The files of the repository before those that they include.
_FOLDERS = ("kernels/", "pyxla/")
# The share of the samples from which a line is shown.
_LEAST = 0.001
# How many lines around such a line belong to the annotated source.
_AROUND = 2
# The instructions of a line that are named.
_CODE = 3


@dataclass
class Instruction:
    """An instruction, and what was counted there.

    Attributes:
        name: "LDG.E.128".
        samples: of warps there.
        executed: how often a warp executed it.
        stalls: reason -> samples.
    """

    name: str
    samples: float
    executed: float
    stalls: Counter[str]


@dataclass
class Line:
    """A line of the source, or an instruction in place of one.

    Attributes:
        file: its path in the repository, else in the folder of headers; "" for machine code.
        number: counted from 1.
        text: of the page.
        code: the instructions that count there.
    """

    file: str
    number: int
    text: str
    code: list[Instruction] = field(default_factory=list)

    @property
    def samples(self) -> float:
        """Of all its instructions."""
        return sum(instruction.samples for instruction in self.code)


def read_lines(text: str) -> list[Line]:
    """The lines of a page of source beside machine code; none if the library was built without them.

    The page has an instruction at each of the lines that it was inlined into, the innermost and those of the calls. It
    counts at the one with the fewest instructions: a call of a small function, but the inner line of a large one.
    """
    code: dict[str, Instruction] = {}
    lines: dict[str, list[Line]] = {}
    counts: Counter[tuple[str, int]] = Counter()
    file, line, names = "", None, []
    for row in csv.reader(text.splitlines()):
        if row[:1] == ["File Path"]:
            file = _shown(row[1])
        elif row[:2] == ["Line No", "Source"]:
            names, line = row, None
        elif names and len(row) == len(names):
            line = Line(file, int(row[0]), row[1]) if row[0].isdigit() else line
            if line and row[2].startswith("0x"):
                code[row[2]] = _instruction(row[3], zip(names[4:], row[4:], strict=True))
                lines.setdefault(row[2], []).append(line)
                counts[line.file, line.number] += 1
    found: dict[tuple[str, int], Line] = {}
    for address, places in lines.items():
        best = min(places, key=lambda place: (counts[place.file, place.number], _distance(place.file)))
        found.setdefault((best.file, best.number), best).code.append(code[address])
    return list(found.values())


def read_instructions(text: str) -> list[Line]:
    """The instructions of a page of machine code, each as a line, numbered from 1."""
    found: list[Line] = []
    names: list[str] = []
    for row in csv.reader(text.splitlines()):
        if row[:2] == ["Address", "Source"]:
            names = row
        elif names and len(row) == len(names):
            found.append(Line("", len(found) + 1, row[1].strip()))
            found[-1].code.append(_instruction(row[1], zip(names[2:], row[2:], strict=True)))
    return found


def annotated(lines: list[Line]) -> list[dict[str, Any]]:
    """The lines with samples as in the file of a profile, with those around them, in the order of the files.

    Lines with less than a thousandth of the samples are left out, unless they are beside another one.
    """
    total = sum(line.samples for line in lines) or 1.0
    own = {(line.file, line.number): line for line in lines}
    sampled = sorted(place for place, line in own.items() if line.samples >= _LEAST * total)
    texts = {file: _texts(file) for file, _ in sampled}
    found = []
    for file, number in dict.fromkeys(near for place in sampled for near in _around(*place)):
        line = own.get((file, number))
        text = texts[file].get(number, line.text if line else None)
        if text is not None:
            found.append({"file": file, "line": number, "text": text, **_counted(line, total)})
    return found


def _counted(line: Line | None, total: float) -> dict[str, Any]:
    code, stalls = Counter(), Counter()
    for instruction in line.code if line else ():
        code[instruction.name] += instruction.samples
        stalls.update(instruction.stalls)
    return {
        "share": sum(code.values()) / total,
        "executed": int(sum(instruction.executed for instruction in line.code)) if line else 0,
        "stall": main_stall(stalls),
        "code": [name for name, samples in code.most_common(_CODE) if samples],
    }


def _instruction(text: str, values: Iterable[tuple[str, str]]) -> Instruction:
    # A predicate comes first: "@!P0 BRA".
    name = next((word for word in text.split() if not word.startswith("@")), "?").rstrip(";")
    numbers = {column: number_of(cell) or 0.0 for column, cell in values}
    stalls = Counter(
        {
            stall_name(column.removeprefix(_STALL)): samples
            for column, samples in numbers.items()
            if column.startswith(_STALL) and not column.endswith(_NOT_ISSUED) and samples
        }
    )
    return Instruction(name, numbers.get(_SAMPLES, 0.0), numbers.get(_EXECUTED, 0.0), stalls)


def _around(file: str, number: int) -> Iterator[tuple[str, int]]:
    return ((file, place) for place in range(max(1, number - _AROUND), number + _AROUND + 1))


def _distance(file: str) -> int:
    return next((rank for rank, folder in enumerate(_FOLDERS) if file.startswith(folder)), len(_FOLDERS))


def _shown(file: str) -> str:
    """The path in the repository, as the library may have been built in another folder, or in the folder of headers."""
    for folder in _FOLDERS:
        _, inside, tail = file.rpartition(f"/{folder}")
        if inside and (project.root() / folder / tail).is_file():
            return folder + tail
    return file.rpartition("/include/")[2]


def _texts(file: str) -> dict[int, str]:
    """The lines of a file of the repository by number; none of another file."""
    path = project.root() / file
    if not path.is_file():
        return {}
    return dict(enumerate(path.read_text(errors="replace").splitlines(), 1))
