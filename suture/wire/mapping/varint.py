"""Encodes and decodes protobuf's varints, for messages that are processed without protobuf."""

from functools import lru_cache
from typing import Final

VARINT_BYTES_MAX: Final = 5  # enough for the size of any message
LENGTH_DELIMITED: Final = 2  # protobuf's wire type of bytes and messages


def field_tag(number: int) -> bytes:
    """Return the encoded tag of a field with this number (at most 15), whose value is bytes or a
    message."""
    assert 0 < number < 16
    return bytes([number << 3 | LENGTH_DELIMITED])


@lru_cache(1_024)
def varint(value: int) -> bytes:
    """Encode `value` as a varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(view: memoryview, start: int) -> tuple[int, int]:
    """Decode the varint at the offset `start`. Return its value, and the offset of the first byte
    after it.

    If the varint has no end, return a value that is larger than the size of any message.
    """
    value = 0
    for index, octet in enumerate(view[start : start + VARINT_BYTES_MAX]):
        value |= (octet & 0x7F) << 7 * index
        if octet < 0x80:
            return value, start + index + 1
    return len(view), start
