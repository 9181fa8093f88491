"""Options shared by many commands."""

from typing import Annotated, Final

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document, for machines.")]
ScmOption = Annotated[
    str,
    typer.Option("--scm", help="Address of the SCM.", metavar="HOST:PORT", envvar="SUTURE_SCM"),
]
SCM_DEFAULT: Final = "127.0.0.1:9860"
