"""The options --scm and --json, which most commands of `suture` have.

The commands do not declare them; `agent.cli.program` adds them to the commands. While a command
runs, `scm_address` and `is_json` return their values.
"""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any, Final

from suture.terminal.typer_options import JsonFlag, option

SCM_DEFAULT: Final = "127.0.0.1:9860"
ScmOption = Annotated[str, option("HOST:PORT", "Address of the SCM.", "--scm", envvar="SUTURE_SCM")]

SCM: Final = Parameter("scm", Parameter.KEYWORD_ONLY, default=SCM_DEFAULT, annotation=ScmOption)
JSON: Final = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=JsonFlag)


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """The values of --scm and --json of the running command."""

    scm: str = SCM_DEFAULT
    as_json: bool = False


_chosen: ContextVar[CommonOptions] = ContextVar(
    "chosen",
    default=CommonOptions(),  # noqa: B039 - it is frozen
)


def scm_address() -> str:
    """Return the address of the SCM, from the option --scm."""
    return _chosen.get().scm


def is_json() -> bool:
    """Return True if the command must print one JSON document instead of text."""
    return _chosen.get().as_json


def with_options(run: Callable[..., Any], *options: Parameter) -> Callable[..., Any]:
    """Return a command that has the parameters of `run` and `options`. It stores the values of
    `options`, then calls `run`."""

    @wraps(run)
    def call(**given: Any) -> Any:
        values = CommonOptions(**{one.name: given.pop(one.name) for one in options})
        before = _chosen.set(values)
        try:
            return run(**given)
        finally:
            _chosen.reset(before)

    own = inspect.signature(run)
    call.__signature__ = own.replace(  # type: ignore[attr-defined] # typer reads it
        parameters=[*own.parameters.values(), *options]
    )
    return call
