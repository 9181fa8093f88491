"""A command line that is read without typer means what it means to typer."""

from collections.abc import Callable, Iterator
from functools import wraps
from inspect import signature
from typing import Any

import pytest
import typer
from hypothesis import example, given, settings
from hypothesis import strategies as st

import agent.cli.inspect.status
import agent.cli.quick
from agent.cli.inspect.status import status
from agent.cli.quick import QUICK, plain
from agent.cli.terminal.credentials import choose
from agent.cli.terminal.typer_options import for_typer

Call = dict[str, Any]

BEFORE = (
    *("--tls-key=a.pem", "--tls-ca=b.pem", "--tls-key", "c.pem", "--allow-plaintext"),
    *("--allow-plaintext=1", "--client-config=", "--version", "--json", "--"),
)
BEHIND = (
    *("--scm=h:1", "--datanode=h:2", "--json", "--scm", "h:3", "--json=1", "--scm=", "--datanode"),
    *("", "-x", "--datanode=-x", "--help", "--js", "--", "--tls-key=d.pem", "status"),
)
VARIABLES = ("SUTURE_SCM", "SUTURE_TLS_KEY", "SUTURE_ALLOW_PLAINTEXT", "SUTURE_CLIENT_CONFIG")
ENVIRONMENTS = st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(["", "1", "x"]))
LINES = st.builds(
    lambda before, behind: [*before, "status", *behind],
    st.lists(st.sampled_from(BEFORE), max_size=2),
    st.lists(st.sampled_from(BEHIND), max_size=3),
)


class Recorder:
    """The commands as they are declared; what they are called with, and nothing else is done."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.choose = self._recorded(choose)
        self.status = self._recorded(status)
        self.app = typer.Typer(rich_markup_mode=None)
        self.app.callback()(for_typer(self.choose))
        self.app.command("status")(for_typer(self.status))

    def _recorded(self, command: Callable[..., object]) -> Callable[..., int]:
        @wraps(command)
        def record(**values: object) -> int:
            called = signature(command).bind(**values)
            called.apply_defaults()
            self.calls.append(called.arguments)
            return 0

        return record

    def by_typer(self, words: list[str]) -> list[Call]:
        """Return how typer calls the commands, in their order."""
        self.calls = []
        self.app(words, prog_name="suture", standalone_mode=False)
        return self.calls

    def read_plainly(self, words: list[str]) -> list[Call] | None:
        """Return how the quick reader calls them; None where it leaves them to typer."""
        self.calls = []
        call = plain(words)
        if call is None:
            assert not self.calls, "what is left to typer has done nothing yet"
            return None
        call()
        return self.calls


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    """Put recorders in the place of the commands."""
    result = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent.cli.quick, "choose", result.choose)
        patch.setattr(agent.cli.inspect.status, "status", result.status)
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        yield result


@settings(deadline=None)
@given(words=LINES, environment=ENVIRONMENTS)
@example(words=["status", "--scm", "h:1", "--json"], environment={})
@example(words=["status", "--json=1"], environment={})
@example(words=["status", "--scm=h:1", "--scm=h:2"], environment={})
@example(words=["status", "--scm", "--json"], environment={})
@example(words=["status", "--scm"], environment={})
@example(words=["status", "h:1"], environment={})
@example(words=["status"], environment={"SUTURE_ALLOW_PLAINTEXT": "0"})
@example(words=["--tls-key=a.pem", "status", "--datanode=h:1"], environment={"SUTURE_SCM": "x"})
def test_what_is_read_plainly_is_what_typer_reads(
    recorder: Recorder, words: list[str], environment: dict[str, str]
) -> None:
    """Both call the same commands with the same values; what typer refuses is never plain."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)

        read = recorder.read_plainly(words)

        if read is not None:
            assert recorder.by_typer(words) == read


@pytest.mark.parametrize(
    "line",
    [
        "status",
        "status --json",
        "status --datanode 10.0.0.1:9866",
        "status --scm=scm:9860 --json",
        "--tls-certificate a --tls-key=b --tls-ca c status --scm scm:9860",
        "--allow-plaintext status --json --datanode host:1",
    ],
)
def test_what_people_and_monitors_type_is_plain(recorder: Recorder, line: str) -> None:
    """The ordinary ways to ask need no typer."""
    assert recorder.read_plainly(line.split()) is not None


def test_every_quick_command_is_declared_for_both() -> None:
    """The commands that are read here are those that were recorded above."""
    assert {"status": ("agent.cli.inspect.status", "status")} == QUICK
