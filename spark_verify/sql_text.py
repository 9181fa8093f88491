"""Values and names as SQL text."""

from collections.abc import Iterable


def quoted(name: str) -> str:
    """Return a name, of which dots part the pieces, as an identifier."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))


def text(words: str) -> str:
    """Return a string literal."""
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"


def texts(words: Iterable[str]) -> str:
    """Return string literals, parted by commas."""
    return ", ".join(map(text, words))
