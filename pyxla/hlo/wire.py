"""The wire format of protocol buffers: the varints and length-delimited fields of XLA's options and profiles.

Not the protobuf library: its generated classes for these messages come with TensorFlow only.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _BYTES = 0, 2


def field(number: int, value: bytes | str | int) -> bytes:
    """A field of a message.

    Args:
        number: its number in the schema.
        value: bytes of a message, a string, or an integer that is not negative (a bool is one).
    """
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def length_delimited(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each field of a message that has length-delimited fields only.

    Raises:
        ValueError: the message has another field, or is cut short.
    """
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        size, at = _read_varint(message, at)
        if tag & 7 != _BYTES or at + size > len(message):
            raise ValueError(f"expected length-delimited fields, got wire type {tag & 7} in {len(message)} bytes")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the top bit says that another byte follows."""
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at this place, and where it ends."""
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("expected a varint, got the end of the data")
