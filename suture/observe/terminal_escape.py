"""Text from a disk or the wire in a form that is safe to show on a terminal.

A name may hold control sequences that move the cursor, change the title or paste; characters that
reverse the reading order; and line ends that forge a line of the agent. All of them are shown as
codes, and none takes effect. Letters of every script stay as they are.
"""

import unicodedata
from typing import Final

SHOWN_AS_CODE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: controls, formats (including changes of direction), surrogates, unassigned
characters, and line separators."""
ID_SHOWN: Final = 8  # characters of a UUID, that is, 32 bits


def short_id(datanode_id: str) -> str:
    """Return a prefix of a datanode's id that identifies it; commands accept it. An address, where
    a datanode was queried by address, stays whole."""
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
