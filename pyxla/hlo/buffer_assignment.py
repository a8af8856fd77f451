"""Reads XLA's buffer assignment: how much memory a module takes, and for what. Needs neither torch nor XLA."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Allocation", "MemoryPlan", "read_memory_plan"]

_ALLOCATION = re.compile(r"allocation (?P<index>\d+): size (?P<size>\d+)(?P<rest>.*)")
_VALUE = re.compile(r" value: <\d+ (?P<name>\S+) @\d+> \(size=(?P<size>\d+),offset=(?P<offset>\d+)\)")
_PARAMETER = re.compile(r"\bparameter (\d+)\b")
_TOTAL = re.compile(r"^Total bytes used: (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Allocation:
    """A piece of memory.

    Attributes:
        index: XLA's number for it.
        kind: "argument", "in place" (an argument that becomes a result), "output", "temporary" or "constant".
        size: bytes.
        parameter: number of the module's parameter that it holds, or None.
        values: the instructions whose results it holds, not all at the same time.
    """

    index: int
    kind: str
    size: int
    parameter: int | None
    values: tuple[str, ...]


@dataclass(frozen=True)
class MemoryPlan:
    """All memory of a module, in bytes.

    Attributes:
        arguments: its parameters, including those that become results.
        outputs: results in their own memory.
        temporaries: memory that only the module itself uses.
        in_place: the part of `arguments` that becomes results.
        constants: constants of the module.
        total: the total that XLA states, else the sum of the allocations.
        allocations: the pieces, in XLA's order.
    """

    arguments: int
    outputs: int
    temporaries: int
    in_place: int
    constants: int
    total: int
    allocations: tuple[Allocation, ...]


def read_memory_plan(text: str) -> MemoryPlan | None:
    """The memory plan of a buffer assignment; None if the text has none.

    Args:
        text: the text that XLA writes to `*-buffer-assignment.txt`.
    """
    listed, total, _ = text.partition("\nTotal bytes used:")
    found = []
    for block in re.split(r"^(?=allocation \d)", listed, flags=re.MULTILINE)[1:]:
        head = _ALLOCATION.match(block)
        if head is None:
            continue
        parameter = _PARAMETER.search(head["rest"])
        found.append(
            Allocation(
                index=int(head["index"]),
                kind=_kind(head["rest"], parameter is not None),
                size=int(head["size"]),
                parameter=int(parameter[1]) if parameter else None,
                values=tuple(match["name"] for match in _VALUE.finditer(block)),
            )
        )
    if not found:
        return None

    def size_of(*kinds: str) -> int:
        return sum(allocation.size for allocation in found if allocation.kind in kinds)

    stated = _TOTAL.search(text)
    return MemoryPlan(
        arguments=size_of("argument", "in place"),
        outputs=size_of("output"),
        temporaries=size_of("temporary"),
        in_place=size_of("in place"),
        constants=size_of("constant"),
        total=int(stated[1]) if total and stated else sum(allocation.size for allocation in found),
        allocations=tuple(found),
    )


def _kind(description: str, is_parameter: bool) -> str:
    live_out = "live-out" in description or "output shape" in description
    if is_parameter:
        return "in place" if live_out else "argument"
    if live_out:
        return "output"
    return "constant" if re.search(r"\bconstant\b", description) else "temporary"
