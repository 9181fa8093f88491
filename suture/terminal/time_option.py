"""Time options in readable form: 90s, 5m, 12h, 7d, 1d12h; a bare number is seconds."""

from collections.abc import Callable
from typing import Any, Final

import typer

from suture.config.quantity import parse_typed_duration_s
from suture.terminal.typer_options import option

METAVAR: Final = "TIME"
DAYS_MAX: Final = 36_500  # a century; in milliseconds it fits into every field of the wire
DAY_S: Final = 86_400


def duration(
    *names: str, text: str, min_s: float = 0.0, shown: str | bool = True
) -> Any:  # a typer option
    """Return an option whose value is a time in seconds. The last names are deprecated aliases;
    `shown` is the default in readable form."""

    def parsed(given: object) -> float:
        try:
            value = parse_typed_duration_s(str(given))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        if value < min_s:
            raise typer.BadParameter(f"invalid time '{given}': expected at least {min_s:g}s")
        if value > DAYS_MAX * DAY_S:
            raise typer.BadParameter(f"invalid time '{given}': expected at most {DAYS_MAX}d")
        return value

    parse: Callable[[str], float] = parsed
    return option(METAVAR, text, *names, parser=parse, show_default=shown)
