"""The values of --scm and --json belong to one command."""

from collections.abc import Callable

import pytest
import typer

from suture.terminal.common_options import (
    JSON,
    SCM,
    SCM_DEFAULT,
    is_json,
    scm_address,
    with_options,
)


def command_line(*options: object) -> Callable[..., object]:
    """Return a program of one command that prints its argument and the values of the options."""

    def show(name: str) -> None:
        """Show the values."""
        typer.echo(f"{name} {scm_address()} {is_json()}")

    app = typer.Typer()
    app.command()(with_options(show, *options))  # type: ignore[arg-type] # parameters
    return lambda *words: app(list(words), standalone_mode=False)


def test_command_sees_its_options_and_the_next_command_sees_the_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = command_line(SCM, JSON)
    run("one", "--scm", "scm.example.org:9860", "--json")
    run("two")

    assert capsys.readouterr().out.splitlines() == [
        "one scm.example.org:9860 True",
        f"two {SCM_DEFAULT} False",
    ]


def test_command_without_the_options_sees_the_defaults_and_rejects_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command_line(SCM, JSON)("one", "--scm", "scm.example.org:9860", "--json")
    assert (SCM_DEFAULT, False) == (scm_address(), is_json())
    run = command_line()
    run("two")

    assert capsys.readouterr().out.splitlines()[1] == f"two {SCM_DEFAULT} False"
    with pytest.raises(typer.TyperException, match="No such option"):
        run("three", "--json")
