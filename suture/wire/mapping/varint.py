"""Protobuf's varints, for messages that are assembled or parsed without protobuf."""

from typing import Final

VARINT_BYTES_MAX: Final = 5  # enough for the size of any message
LENGTH_DELIMITED: Final = 2  # protobuf's wire type of bytes and messages


def field_tag(number: int) -> bytes:
    """Return the tag of a field with this number (at most 15) that contains bytes or a message."""
    assert 0 < number < 16
    return bytes([number << 3 | LENGTH_DELIMITED])


def varint(value: int) -> bytes:
    """Return `value` as a varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(view: memoryview, start: int) -> tuple[int, int]:
    """Return the number in a varint, and the offset of its end. If the varint does not end, return
    a number larger than any message size."""
    value = 0
    for index, octet in enumerate(view[start : start + VARINT_BYTES_MAX]):
        value |= (octet & 0x7F) << 7 * index
        if octet < 0x80:
            return value, start + index + 1
    return len(view), start
