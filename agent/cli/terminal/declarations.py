"""Options as data: declared once, for two readers.

typer reads them through `agent.cli.terminal.typer_options`, checks what is wrong and shows help and
completion. `read` below takes only what is plain, and leaves everything else to typer: there is one
parser that says no. Importing typer, and what it converts values with, takes a tenth of a second,
which is half of a quick command.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_type_hints


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command, the metadata of its parameter: `Annotated[str, Option(...)]`.

    Of type `bool` it is a flag; else it takes a value, which may come from `envvar`, too.
    """

    name: str
    help: str
    metavar: str | None = None
    envvar: str | None = None


JSON: Final = Option("--json", "Print one JSON document, for machines.")
SCM: Final = Option("--scm", "Address of the SCM.", "HOST:PORT", "SUTURE_SCM")
SCM_DEFAULT: Final = "127.0.0.1:9860"


class Plain(NamedTuple):
    """What words say of a command's options, and the words behind them."""

    values: dict[str, Any]
    rest: Sequence[str]


def read(
    command: Callable[..., object], words: Sequence[str], environment: Mapping[str, str]
) -> Plain | None:
    """Return the options that `words` begin with and the environment gives; None: ask typer.

    Plain is a flag without a value, or an option with one, by its whole name.
    """
    known = _options(command)
    values: dict[str, Any] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, sign, value = words[at].partition("=")
        option = known.get(name)
        if option is None:
            return None
        if option.convert is bool:
            if sign:
                return None
            values[option.parameter] = True
        else:
            if not sign:
                at += 1
                value = words[at] if at < len(words) else ""
            if not value:
                return None
            values[option.parameter] = option.convert(value)
        at += 1
    for parameter, envvar, convert in known.values():
        value = environment.get(envvar, "")
        if value and parameter not in values:
            if convert is bool:
                return None  # typer knows the ways to say no
            values[parameter] = convert(value)
    return Plain(values, words[at:])


class _Known(NamedTuple):
    parameter: str
    envvar: str
    convert: Callable[[str], object]


def _options(command: Callable[..., object]) -> dict[str, _Known]:
    """Return the options of a command by name; every parameter of it is one."""
    known = {}
    for parameter, hint in get_type_hints(command, include_extras=True).items():
        if parameter == "return":
            continue
        kind, option = get_args(hint)
        assert isinstance(option, Option), f"{parameter} is not declared here"
        kinds = {kind, *get_args(kind)}
        convert = bool if kind is bool else Path if Path in kinds else str
        known[option.name] = _Known(parameter, option.envvar or "", convert)
    return known
