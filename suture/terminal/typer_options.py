"""Creates typer options and arguments, and declares those that many commands have."""

from typing import Annotated, Any, Final

import typer


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return a typer option that has a value, for use in `Annotated`. `text` is its help. Without
    `names`, the option has the name of the parameter."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def flag(text: str, *names: str, **more: Any) -> Any:
    """Return a typer option without a value, for use in `Annotated`. `text` is its help."""
    return typer.Option(*names, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Return a typer argument for use in `Annotated`. `text` is its help."""
    return typer.Argument(metavar=metavar, help=text, **more)


ID_MAX: Final = 2**63 - 1  # maximum id of a container on the wire

CONTAINER: Final = argument("CONTAINER", "Container id.", min=1, max=ID_MAX)
ContainerArgument = Annotated[int, CONTAINER]
OptionalContainerArgument = Annotated[int | None, CONTAINER]
PlanArgument = Annotated[
    str, argument("DIR", "Run directory of suture-verify, or its s3:// address.")
]


def version_flag(program: str) -> Any:  # a typer option
    """Return the option `--version` of a program, which prints the version and exits."""

    def print_version(wanted: bool) -> None:
        if wanted:
            from importlib.metadata import version

            typer.echo(f"{program} {version('suture')}")
            raise typer.Exit

    return flag("Print the version and exit.", "--version", callback=print_version, is_eager=True)


JsonFlag = Annotated[bool, flag("Print one JSON document.", "--json")]
