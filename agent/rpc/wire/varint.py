"""Numbers as protobuf writes them, for messages that are put together or read without it."""

from typing import Final

VARINT_BYTES_MAX: Final = 5  # more than any message's size needs
LENGTH_DELIMITED: Final = 2  # protobuf's wire type of bytes and messages


def field_tag(number: int) -> bytes:
    """Return what stands before a field of bytes, or a message, of this number (at most 15)."""
    assert 0 < number < 16
    return bytes([number << 3 | LENGTH_DELIMITED])


def varint(value: int) -> bytes:
    """Return `value` as protobuf writes it."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(view: memoryview, start: int) -> tuple[int, int]:
    """Return a number as protobuf writes it, and where it ends; a size no message has if it does
    not end."""
    value = 0
    for index, octet in enumerate(view[start : start + VARINT_BYTES_MAX]):
        value |= (octet & 0x7F) << 7 * index
        if octet < 0x80:
            return value, start + index + 1
    return len(view), start
