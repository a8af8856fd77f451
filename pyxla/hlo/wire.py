"""The wire format of protocol buffers: the varints and length-delimited fields of XLA's options and profiles.

Why not the protobuf library: no locked wheel has it, or the generated classes for these messages.
"""

from __future__ import annotations

_VARINT, _BYTES = 0, 2


def field(number: int, value: bytes | str | int) -> bytes:
    """A field of a message.

    Args:
        number: its number in the schema.
        value: bytes of a message, a string, or a non-negative integer (a bool counts as one).
    """
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def length_delimited(message: bytes) -> list[tuple[int, bytes]] | None:
    """Number and content of each field of a message that has only length-delimited fields.

    Returns:
        The fields in order; None if the message has a field of another kind, or is truncated.
    """
    fields, at = [], 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        size, at = _read_varint(message, at)
        if tag & 7 != _BYTES or at + size > len(message):
            return None
        fields.append((tag >> 3, message[at : at + size]))
        at += size
    return fields


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the top bit says that another byte follows."""
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at this place, and where it ends; a truncated one ends past the data."""
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at
    return value, len(data) + 1
