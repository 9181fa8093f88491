"""Text from a disk or the wire, as it may be shown on a terminal.

A name may hold what a terminal obeys: sequences that move the cursor, change its title or paste;
characters that turn the order of what is read; ends of lines that forge a line of ours. All that
is shown, and none of it obeyed. Letters of every script stay as they are.
"""

import unicodedata
from typing import Final

SHOWN_AS_CODE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, formats (the turns of direction among them), halves of surrogate pairs, what nobody
has assigned, and separators of lines."""
ID_SHOWN: Final = 8  # characters of a UUID: 2^32 datanodes until two look alike


def short_id(datanode_id: str) -> str:
    """Return enough of a datanode's id to tell it from others; commands take it as a prefix. An
    address, where a datanode was asked by that, stays whole."""
    return datanode_id if ":" in datanode_id else datanode_id[:ID_SHOWN]


def printable(text: str) -> str:
    """Return `text` with each character that is no visible one written as its code, `\\x1b`.

    A backslash stays: what is shown is to be read, not to be parsed.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _code(character) if unicodedata.category(character) in SHOWN_AS_CODE else character
        for character in text
    )


def _code(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
