"""Reads XLA's text form of an HLO module: custom calls, copies, aliasing. Needs neither torch nor XLA."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SHAPE = r"(?:\([^()]*\)|[a-z]\w*\[[\d,]*\](?:\{[^}]*\})?)"
_INSTRUCTION = re.compile(
    rf"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>{_SHAPE}) (?P<opcode>[\w\-]+)\((?P<rest>.*)$"
)


@dataclass(frozen=True)
class Instruction:
    """One instruction: `name = shape opcode(operands), the rest of the line`."""

    name: str
    shape: str
    opcode: str
    line: str


@dataclass(frozen=True)
class CustomCall:
    """A custom-call instruction.

    Attributes:
        name: name of the instruction.
        target: custom_call_target.
        shape: shape and layout of the result.
        operands: shapes and layouts of the operands, where the text states them.
        api_version: API_VERSION_TYPED_FFI for a typed FFI handler.
        aliasing: output_to_operand_aliasing, or empty.
        attributes: text of the backend_config's dictionary, or empty.
    """

    name: str
    target: str
    shape: str
    operands: tuple[str, ...]
    api_version: str
    aliasing: str
    attributes: str


def instructions(text: str) -> list[Instruction]:
    """All instructions of all computations, in the order of the text."""
    found = []
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match:
            found.append(Instruction(match["name"], match["shape"], match["opcode"], line.strip()))
    return found


def custom_calls(text: str, target: str | None = None) -> list[CustomCall]:
    """The custom calls of a module, all or those with this target."""
    calls = []
    for instruction in instructions(text):
        if instruction.opcode not in ("custom-call", "custom-call-start"):
            continue
        line = instruction.line
        name = _field(line, r'custom_call_target="([^"]*)"')
        if target is not None and name != target:
            continue
        constraints = _braces(line, "operand_layout_constraints=")
        calls.append(
            CustomCall(
                name=instruction.name,
                target=name,
                shape=instruction.shape,
                operands=tuple(re.findall(_SHAPE, constraints)),
                api_version=_field(line, r"api_version=(\w+)"),
                aliasing=_braces(line, "output_to_operand_aliasing="),
                attributes=_braces(line, "backend_config="),
            )
        )
    return calls


def copies(text: str) -> list[Instruction]:
    """The instructions that copy a buffer."""
    return [i for i in instructions(text) if i.opcode in ("copy", "copy-start")]


def input_output_aliases(text: str) -> list[tuple[int, int]]:
    """(output, parameter) pairs of the module's input_output_alias."""
    header = text.partition("\n")[0]
    return [
        (int(o or 0), int(p)) for o, p in re.findall(r"\{(\d*)\}: \((\d+), \{", _braces(header, "input_output_alias="))
    ]


def _field(line: str, pattern: str) -> str:
    match = re.search(pattern, line)
    return match[1] if match else ""


def _braces(line: str, prefix: str) -> str:
    """What stands between the braces that follow `prefix`; strings inside may hold braces of their own."""
    start = line.find(prefix)
    if start < 0 or line[start + len(prefix) : start + len(prefix) + 1] != "{":
        return ""
    depth, quoted, begin = 0, False, start + len(prefix) + 1
    position = begin - 1
    while position < len(line):
        character = line[position]
        if character == "\\" and quoted:
            position += 1
        elif character == '"':
            quoted = not quoted
        elif not quoted and character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return line[begin:position].strip()
        position += 1
    return ""
