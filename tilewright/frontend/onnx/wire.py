"""The wire format of protocol buffers, read without the onnx package: fields of a message, one after the other.

Enough to find names, shapes and places of files in a model without copying its weights.
https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from tilewright.frontend.onnx.content import Content

Field: TypeAlias = tuple[int, "int | Content"]  # number; an integer, or the bytes of a string or message

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; groups (3, 4) are obsolete and refused
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}


def fields(message: Content) -> Iterator[Field]:
    """The fields of a message in the order of the file. Raises ValueError where it ends early or has a group."""
    for number, value, _, _ in spans(message):
        yield number, value


def spans(message: Content) -> Iterator[tuple[int, int | Content, int, int]]:
    """`fields` with the bytes of the message, from `begin` to `end`, that each takes with its number and size."""
    place, size = 0, len(message)
    while place < size:
        begin = place
        tag, place = _varint(message, place)
        wire_type = tag & 7
        if wire_type == _VARINT:
            value, place = _varint(message, place)
            yield tag >> 3, value, begin, place
            continue
        if wire_type == _BYTES:
            length, place = _varint(message, place)
        elif wire_type in _FIXED_BYTES:
            length = _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} at byte {begin}")
        if length > size - place:
            raise ValueError(f"a field of {length} bytes at byte {place} of {size}")
        content = message[place : place + length]
        place += length
        yield tag >> 3, content if wire_type == _BYTES else int.from_bytes(bytes(content), "little"), begin, place


def encoded(number: int, value: bytes) -> bytes:
    """A field that holds a string or a message."""
    return _encoded_varint(number << 3 | _BYTES) + _encoded_varint(len(value)) + value


def messages(message: Content, number: int) -> Iterator[Content]:
    """The values of a field that holds strings or messages."""
    for found, value in fields(message):
        if found == number and not isinstance(value, int):
            yield value


def text(message: Content, number: int) -> str:
    """The last value of a field that holds a string, or "". Raises ValueError where it is not UTF-8."""
    found = ""
    for value in messages(message, number):
        found = bytes(value).decode()
    return found


def _varint(message: Content, place: int) -> tuple[int, int]:
    """An integer of 7 bits per byte, least significant first, and the place behind it."""
    value = shift = 0
    while True:
        if place >= len(message) or shift > 63:
            raise ValueError(f"an integer without an end at byte {place}")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7


def _encoded_varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
