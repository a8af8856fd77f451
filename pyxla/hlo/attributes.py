"""Decodes the attributes of a typed FFI custom call from HLO text. Needs neither torch nor XLA."""

from __future__ import annotations

import re
import struct
from typing import Any

from pyxla.hlo.text import split

__all__ = ["decode"]

_CUT_ARRAY = re.compile(r"(?:[\w.]+ = )?(?:array|dense)<[^>]*")
_ARRAY = re.compile(r"array<(?P<type>\w+)(?:: (?P<items>[^>]*))?>")
_DENSE = re.compile(r"dense<(?P<items>[^>]*)> : tensor<(?P<count>\d+)x(?P<type>[a-z]\w*)>")
_NUMBER = re.compile(r"(?P<value>[-+\w.]+)(?: : (?P<type>\w+))?")
_FORMATS = {"f16": ("<H", "<e"), "f32": ("<I", "<f"), "f64": ("<Q", "<d")}
# For long lists: MLIR writes more than a hundred elements as bytes.
_BYTES = {"f16": "e", "f32": "f", "f64": "d", "i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q"}


def decode(text: str) -> dict[str, Any]:
    """The attributes by name, as Python values; a value of an unknown kind stays text.

    Args:
        text: hlo_text.CustomCall.attributes, such as `eps = 1.0E-6 : f64, sizes = array<i64: 1, 2>`.
    """
    found = {}
    for part in _parts(text):
        name, equals, value = part.partition(" = ")
        found[name.strip('"')] = _value(value.strip()) if equals else True
    return found


def _parts(text: str) -> list[str]:
    """The parts between commas; a comma between angle brackets does not count."""
    parts: list[str] = []
    for part in split(text):
        if parts and _CUT_ARRAY.fullmatch(parts[-1]):
            parts[-1] += f", {part}"
        else:
            parts.append(part)
    return parts


def _value(text: str) -> Any:
    if text.startswith('"'):
        return _string(text[1:-1])
    if text.startswith("{"):
        return decode(text[1:-1])
    if text.startswith("["):
        return [_value(part) for part in _parts(text[1:-1])]
    if text in ("true", "false"):
        return text == "true"
    array, dense = _ARRAY.fullmatch(text), _DENSE.fullmatch(text)
    if array:
        return _elements(array["items"] or "", array["type"])
    if dense:
        return _dense(dense["items"], int(dense["count"]), dense["type"], text)
    number = _NUMBER.fullmatch(text)
    return _element(number["value"], number["type"] or "") if number else text


def _dense(items: str, count: int, kind: str, text: str) -> Any:
    """The elements of a list; a single element without brackets is repeated. Elements of an unknown type stay text."""
    if items.startswith('"0x'):
        try:
            return [*struct.unpack(f"<{count}{_BYTES[kind]}", bytes.fromhex(items[3:-1]))]
        except (KeyError, ValueError, struct.error):
            return text
    found = _elements(items.removeprefix("[").removesuffix("]"), kind)
    return found * count if len(found) == 1 and not items.startswith("[") else found


def _elements(items: str, kind: str) -> list[Any]:
    return [_element(item.strip(), kind) for item in items.split(",") if item.strip()]


def _element(text: str, kind: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        if kind in _FORMATS and text.lower().startswith("0x"):
            bits, real = _FORMATS[kind]
            return struct.unpack(real, struct.pack(bits, int(text, 16)))[0]
        return float(text) if kind in _FORMATS or kind == "bf16" else int(text, 0)
    except (ValueError, struct.error):
        return text


def _string(text: str) -> str:
    r"""A string's characters: MLIR writes a quote as \22, a backslash as \\, other bytes by their codes."""
    raw = re.sub(
        rb"\\([0-9A-Fa-f]{2}|.)",
        lambda match: bytes([int(match[1], 16)]) if len(match[1]) == 2 else match[1],
        text.encode(),
        flags=re.DOTALL,
    )
    return raw.decode(errors="replace")
