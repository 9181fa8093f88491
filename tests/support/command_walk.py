"""Every command of a program, with the words that lead to it."""

from collections.abc import Iterator
from typing import Any


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and all its subcommands, each with the words that lead to it."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from walk(below, (*words, name))
