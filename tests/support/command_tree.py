"""Commands of `suture`, found by walking the program itself."""

from collections.abc import Sequence
from typing import Final

from typer.main import get_command

from agent.cli.program import program
from tests.support.command_walk import walk

ALL: Final = dict(walk(get_command(program(None))))
LEAVES: Final = {words: one for words, one in ALL.items() if not hasattr(one, "commands")}


def has_parameter(words: tuple[str, ...], name: str) -> bool:
    """Return whether the command `words` has a parameter with this name."""
    return any(parameter.name == name for parameter in LEAVES[words].params)


def command_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line that name the command."""
    return tuple(words[:2]) if tuple(words[:2]) in LEAVES else (words[0],)
