"""Escapes text from a disk or the network, so that it is safe to show on a terminal.

A name may contain control sequences that move the cursor, change the title or paste text. It may
also contain characters that reverse the reading direction, and line ends that imitate a log line.
All these characters are replaced by their codes. Letters of every script are unchanged.
"""

import unicodedata
from typing import Final

SHOWN_AS_CODE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of the replaced characters: controls, formats (including changes of
direction), surrogates, unassigned characters, and line separators."""
ID_SHOWN: Final = 8  # characters of a UUID, that is, 32 bits


def short_id(datanode_id: str) -> str:
    """Return the first characters of a datanode's id, which commands accept instead of the id. If
    `datanode_id` is an address, it is returned unchanged."""
    return datanode_id if ":" in datanode_id else datanode_id[:ID_SHOWN]


def printable(text: str) -> str:
    """Return `text` with each invisible or control character written as its code, such as `\x1b`.

    A backslash is not escaped, because the result is for people and is not parsed.
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
