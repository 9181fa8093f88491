"""Escapes text from a snapshot for a terminal, as `suture.observe.terminal_escape` does in the
agent.

A name may contain escape sequences that move the cursor, change the title or paste text, characters
that reverse the reading order, and line ends that forge a line of output. All of these are printed
as codes and have no effect. Letters of every script are printed unchanged.
"""

import unicodedata
from typing import Final

SHOWN_AS_CODE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of controls, formats (including direction changes), surrogates, unassigned and
private characters, and line separators.
"""


def printable(text: str) -> str:
    """Return `text` with the code, such as `\\x1b`, of each invisible character in its place.

    A backslash is not escaped, because people read the output and programs do not parse it.
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
