"""Reads XLA's text form of an HLO module: custom calls, copies, aliasing. Needs neither torch nor XLA."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "CustomCall",
    "Instruction",
    "buffer_donors",
    "captured_calls",
    "copies",
    "custom_calls",
    "input_output_aliases",
    "instructions",
]

_START = re.compile(r"\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = ")
_ARRAY = re.compile(r"[a-z]\w*\[[^\]]*\]")
_OPCODE = re.compile(r" (?P<opcode>[a-z][\w\-]*)(?=\()")
_THUNK = re.compile(r"(?P<indent> *)\d+: (?P<kind>k\w+)")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Instruction:
    """One instruction: `name = shape opcode(operands), the rest of the line`."""

    name: str
    shape: str
    opcode: str
    operands: str
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
    return [found[0] for line in text.splitlines() if (found := instruction_of(line))]


def custom_calls(text: str, target: str | None = None) -> list[CustomCall]:
    """The custom calls of a module, all or those with this target."""
    calls = []
    for line in text.splitlines():
        found = instruction_of(line)
        if found is None or found[0].opcode not in ("custom-call", "custom-call-start"):
            continue
        instruction, rest = found
        fields = fields_of(rest)
        name = fields.get("custom_call_target", "").strip('"')
        if target is not None and name != target:
            continue
        calls.append(
            CustomCall(
                name=instruction.name,
                target=name,
                shape=instruction.shape,
                operands=tuple(split(_braced(fields, "operand_layout_constraints"))),
                api_version=fields.get("api_version", ""),
                aliasing=_braced(fields, "output_to_operand_aliasing"),
                attributes=_braced(fields, "backend_config"),
            )
        )
    return calls


def copies(text: str) -> list[Instruction]:
    """The instructions that copy a buffer."""
    return [i for i in instructions(text) if i.opcode in ("copy", "copy-start")]


def input_output_aliases(text: str) -> list[tuple[int, int]]:
    """(output, parameter) pairs of the module's input_output_alias."""
    header = next((line for line in text.splitlines() if line.startswith("HloModule")), "")
    fields = fields_of(header)
    pairs = re.findall(r"\{(\d*)\}: \((\d+), \{", _braced(fields, "input_output_alias"))
    return [(int(output or 0), int(parameter)) for output, parameter in pairs]


def buffer_donors(text: str) -> set[int]:
    """The parameters whose buffers the module may use for outputs, from its buffer_donor and input_output_alias."""
    header = next((line for line in text.splitlines() if line.startswith("HloModule")), "")
    donors = re.findall(r"\((\d+), \{\}\)", _braced(fields_of(header), "buffer_donor"))
    return {int(parameter) for parameter in donors} | {parameter for _, parameter in input_output_aliases(text)}


def captured_calls(thunks: str) -> tuple[int, int]:
    """How many custom calls of a thunk sequence are in a command buffer, and how many there are in all.

    Args:
        thunks: text that XLA:CUDA dumps: a thunk per line, `001: kCustomCall [...] ...`, nested ones indented.
    """
    captured = total = 0
    buffer_indent: int | None = None
    for line in thunks.splitlines():
        found = _THUNK.match(line)
        if found is None:
            continue
        indent = len(found["indent"])
        if buffer_indent is not None and indent <= buffer_indent:
            buffer_indent = None
        if found["kind"] == "kCommandBuffer" and buffer_indent is None:
            buffer_indent = indent
        elif found["kind"] == "kCustomCall":
            total += 1
            captured += buffer_indent is not None
    return captured, total


def instruction_of(line: str) -> tuple[Instruction, str] | None:
    """The instruction of a line and what follows its operands; None for any other line."""
    start = _START.match(line)
    end = _shape_end(line, start.end()) if start else -1
    opcode = _OPCODE.match(line, end) if end > 0 else None
    if start is None or opcode is None:
        return None
    close = closing(line, opcode.end())
    operands = line[opcode.end() + 1 : close] if close > 0 else ""
    instruction = Instruction(start["name"], line[start.end() : end], opcode["opcode"], operands, line.strip())
    return instruction, line[close + 1 :] if close > 0 else ""


def fields_of(text: str) -> dict[str, str]:
    """The fields `name=value` between the commas of a text."""
    return dict(part.partition("=")[::2] for part in split(text))


def _shape_end(line: str, start: int) -> int:
    """Where the shape that begins at `start` ends: a tuple, or an array with or without layout; -1 if there is none."""
    if line.startswith("(", start):
        return closing(line, start) + 1 or -1
    array = _ARRAY.match(line, start)
    if array is None or not line.startswith("{", array.end()):
        return array.end() if array else -1
    return closing(line, array.end()) + 1 or -1


def _braced(fields: dict[str, str], name: str) -> str:
    """The field's text without the braces around it; empty if it has none."""
    text = fields.get(name, "")
    return text[1:-1].strip() if text.startswith("{") and text.endswith("}") else ""


def split(text: str) -> list[str]:
    """The parts between commas; a comma inside brackets or a string does not count."""
    parts, begin, position = [], 0, 0
    while position <= len(text):
        character = text[position : position + 1]
        if character in ("", ","):
            parts.append(text[begin:position].strip())
            begin = position + 1
        elif character == '"' or character in _PAIRS:
            close = closing(text, position)
            position = close if close > 0 else len(text) - 1
        position += 1
    return [part for part in parts if part]


def closing(text: str, start: int) -> int:
    """Where the bracket or quote at `start` closes, or -1; brackets inside strings do not count."""
    open_brackets: list[str] = []
    position = start
    while position < len(text):
        character = text[position]
        if character == '"':
            while (position := position + 1) < len(text) and text[position] != '"':
                position += text[position] == "\\"
        elif character in _PAIRS:
            open_brackets.append(_PAIRS[character])
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
        if not open_brackets:
            return position if position < len(text) else -1
        position += 1
    return -1
