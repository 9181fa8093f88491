"""Command lines that are answered without typer: importing it takes longer than the answer.

A plain line of a command in `QUICK` (no help, no completion, no option that is not declared) is
read from the command's own declarations (`agent.cli.terminal.declarations`). Everything else is
`agent.cli.program`, which parses the same declarations with typer.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Final

from agent.cli.terminal.credentials import choose
from agent.cli.terminal.declarations import read

# Only the module of the command that is run is imported: half of a quick answer is importing.
QUICK: Final[dict[str, tuple[str, str]]] = {"status": ("agent.cli.inspect.status", "status")}


def plain(arguments: Sequence[str]) -> Callable[[], int] | None:
    """Return a plain command line of a quick command as its call; None for every other."""
    settings = read(choose, arguments, os.environ)
    if settings is None or not settings.rest or settings.rest[0] not in QUICK:
        return None
    module, name = QUICK[settings.rest[0]]
    command = getattr(import_module(module), name)
    options = read(command, settings.rest[1:], os.environ)
    if options is None or options.rest or "_SUTURE_COMPLETE" in os.environ:
        return None
    choose(**settings.values)
    return partial(command, **options.values)
