"""Options as typer wants them, from their declarations."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_type_hints

import typer

from agent.cli.terminal.declarations import JSON, SCM, Option
from agent.cli.terminal.declarations import SCM_DEFAULT as SCM_DEFAULT


def typed(option: Option) -> Any:  # as typer's own function
    """Return a declared option as typer wants it."""
    return typer.Option(option.name, help=option.help, metavar=option.metavar, envvar=option.envvar)


JsonFlag = Annotated[bool, typed(JSON)]
ScmOption = Annotated[str, typed(SCM)]


def for_typer(command: Callable[..., Any], *more: inspect.Parameter) -> Callable[..., Any]:
    """Return a command of declared options as typer wants it; `more` is read by typer alone."""
    hints = get_type_hints(command, include_extras=True)

    def called(**values: Any) -> Any:
        for parameter in more:
            values.pop(parameter.name)
        return command(**values)

    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind, option = get_args(hints[name])
        annotation = Annotated[kind, typed(option)]  # type: ignore[valid-type]  # it is a value
        parameters.append(parameter.replace(annotation=annotation, kind=parameter.KEYWORD_ONLY))
    called.__doc__ = command.__doc__
    called.__signature__ = inspect.Signature([*more, *parameters])  # type: ignore[attr-defined]
    return called
