"""Options for times such as 90s, 5m, 12h, 7d or 1d12h. A number without a unit means seconds."""

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
    """Return a typer option whose value is a time in seconds. `text` is its help, and `shown` the
    default as text."""

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
