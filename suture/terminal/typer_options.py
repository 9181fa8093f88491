"""Options shared by many commands."""

from typing import Annotated, Any, Final

import typer

ID_MAX: Final = 2**63 - 1  # of a container, on the wire

CONTAINER: Final = typer.Argument(metavar="CONTAINER", help="Container id.", min=1, max=ID_MAX)
ContainerArgument = Annotated[int, CONTAINER]
OptionalContainerArgument = Annotated[int | None, CONTAINER]
PlanArgument = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="Run directory of suture-verify, or its s3:// address.",
    ),
]


def version_flag(program: str) -> Any:  # a typer option
    """Return the option `--version` of a program."""

    def print_version(wanted: bool) -> None:
        if wanted:
            from importlib.metadata import version

            typer.echo(f"{program} {version('suture')}")
            raise typer.Exit

    return typer.Option(
        "--version", callback=print_version, is_eager=True, help="Print the version and exit."
    )


JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
ScmOption = Annotated[
    str,
    typer.Option("--scm", help="Address of the SCM.", metavar="HOST:PORT", envvar="SUTURE_SCM"),
]
SCM_DEFAULT: Final = "127.0.0.1:9860"
