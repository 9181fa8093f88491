"""Command `demo`: runs the demo in a source checkout.

The wheel and the packages do not contain the demo.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer

from suture.errors import Code, UnavailableError

CHECKOUT: Final = Path(__file__).resolve().parents[3]


def find_demo_command(checkout: Path) -> Callable[..., int]:
    """Return the function of the command `demo` in a source checkout.

    If `checkout` is not a source checkout, return a function that raises UnavailableError.
    """
    if (checkout / "tools" / "demo" / "command.py").is_file():
        sys.path.append(str(checkout))
        command: Callable[..., int] = import_module("tools.demo.command").demo
        return command
    return _without_checkout


def _without_checkout(
    _directories: Annotated[list[str] | None, typer.Argument(metavar="DIR")] = None,
) -> int:
    """Store files, damage them on disk, and repair them.

    Example:
        suture demo --agents 5
    """
    raise UnavailableError(
        Code.INELIGIBLE,
        "cannot run the demo: this installation is not a checkout",
        hint="clone the repository and run make demo there",
    )


demo: Final = find_demo_command(CHECKOUT)
