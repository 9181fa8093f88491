"""Every command of `suture`, found by walking the program itself: none is left out."""

import re
from typing import Final

import pytest
import typer
from typer.main import get_command

from agent.cli.main import run
from agent.cli.program import COMMANDS, program
from suture.config.quantity import parse_typed_duration_s
from suture.runtime.exit_codes import ExitCode
from suture.terminal.tasks import OTHERS, TASKS, sections
from suture.terminal.time_option import METAVAR
from tests.support.command_tree import ALL, LEAVES

COLUMNS: Final = 80
TOO_LARGE: Final = "99999999999999999999"  # for a container's id
NAMES_A_DATANODE: Final = {"datanode", "target", "trust"}
TIMES: Final = re.compile(r"(^|_)(for|every|until|since|wait_s|interval_s|duration_s)$")
NAMED: Final = [" ".join(words) for words in ALL]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def test_help_lists_each_command_as_it_describes_itself() -> None:
    """
    The list is written down, so that showing it imports no command.
    """
    shown = get_command(program([])).commands
    known = ALL[()].commands

    assert set(shown) == set(known) > set().union(*COMMANDS.values())
    told = {
        name: " ".join((one.help or "").partition("\n\n")[0].split()) for name, one in known.items()
    }
    assert told == {name: one.help for name, one in shown.items()}


OF_OPERATIONS: Final = {
    *(("scm", words) for words in ("pause", "resume", "limit", "config")),
    ("versions",),
}
"""Commands that issue 55 names."""


def test_walk_finds_every_command_group() -> None:
    """The walk goes into every group. A new command needs a reason."""
    assert 50 < len(set(LEAVES) - OF_OPERATIONS) <= 60
    assert {("scm", "nodes"), ("volume", "retire"), ("status",)} <= set(LEAVES)


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("words", NAMED)
def test_help_of_each_command_fits_80_columns(
    words: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both help options work. No line is wider than the terminal, and no sentence is cut."""
    assert ExitCode.OK == run([*words.split(), option])

    shown = capsys.readouterr().out
    assert "Usage: suture" in shown
    assert [] == [line for line in shown.splitlines() if len(line) > COLUMNS]
    in_one_line = " ".join(shown.split())
    for below in getattr(ALL[tuple(words.split())], "commands", {}).values():
        sentence = " ".join((below.help or "").partition("\n\n")[0].split())
        assert sentence in in_one_line, "no sentence is cut"


@pytest.mark.parametrize("group", sorted(TASKS))
def test_every_command_belongs_to_one_task(group: str) -> None:
    """No task names a command that does not exist."""
    words = () if group == "suture" else (group,)
    names = list(ALL[words].commands)
    told = [name for known in TASKS[group].values() for name in known]

    assert OTHERS not in sections(group, names), sections(group, names)
    assert sorted(names) == sorted(told)


@pytest.mark.parametrize("words", [" ".join(words) for words in LEAVES])
def test_every_command_has_a_sentence_and_the_common_options(words: str) -> None:
    """A datanode and a time are given in the same way everywhere, and the first sentence of the
    help ends with a full stop.
    """
    command = LEAVES[tuple(words.split())]
    options = {one.name: one for one in command.params if one.param_type_name == "option"}

    assert re.search(r"[.?]( |$|\n)", command.help or ""), words
    for name, option in options.items():
        if name in NAMES_A_DATANODE:
            assert "ID|HOST:PORT" == option.metavar, (words, name)
        if TIMES.search(name) and not option.is_flag:
            assert METAVAR == option.metavar, (words, name)
    assert not any("--wait-s" == option.opts[0] for option in options.values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("90s", 90), ("90", 90), ("0", 0), ("5m", 300), ("5min", 300), ("12h", 43_200)),
        *(("7d", 604_800), ("1d12h", 129_600), ("250ms", 0.25), ("1.5h", 5_400)),
    ],
)
def test_times_are_as_people_write_them(text: str, expected: float) -> None:
    """
    A bare number is seconds, as it was before.
    """
    assert expected == parse_typed_duration_s(text)


@pytest.mark.parametrize("words", [words for words in ALL if words not in LEAVES])
def test_a_group_without_a_command_shows_its_help(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """
    In lines, as its --help does, and as a wrong command line.
    """
    assert ExitCode.OK == run([*words, "--help"])
    helped = capsys.readouterr().out

    assert ExitCode.USAGE == run(words)

    said = capsys.readouterr()
    assert "" == said.out
    assert helped.split() == said.err.split()
    assert helped.count("\n") <= said.err.count("\n") + 1


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["explain", "abc"], "invalid number 'abc'"),
        (["history", "--count", "0"], "'0': input should be greater than or equal to 1"),
        (["history", "--since", "yesterday"], "invalid time 'yesterday': expected a form like 7d"),
        (
            ["scrub", "pause", "--for", "99999999999999d"],
            "invalid time '99999999999999d': expected at most 36500d",
        ),
        (["scrub", "scan", TOO_LARGE], f"'{TOO_LARGE}': input should be less than or equal to"),
        (["ls", "--container", TOO_LARGE], f"'{TOO_LARGE}': input should be less than or equal to"),
    ],
)
def test_unknown_argument_is_named_in_the_usage_error(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message has the argument and is Suture's own."""
    assert ExitCode.USAGE == run(words)
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("text", ["soon", "-1", "7x", "", "1h1d"])
def test_invalid_time_is_refused_with_an_example(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usage error shows a valid form."""
    assert ExitCode.USAGE == run(["scrub", "pause", f"--for={text}"])
    assert "expected a form like" in capsys.readouterr().err or not text


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("localhost", "no port"),
        ("scm.example.org", "no port"),
        ("127.0.0.1:", "invalid address"),
        ("127.0.0.1:http", "invalid address"),
        ("127.0.0.1:99999", "invalid address"),
        ("::1", "invalid address"),
        ("http://127.0.0.1:9862", "the address of a web page"),
        ("https://scm.example.org:9862/", "the address of a web page"),
    ],
)
def test_an_address_without_a_port_is_named(
    address: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error does not claim that the host is silent, because gRPC would call another port."""
    for words in (["status"], ["scm", "nodes"]):
        assert ExitCode.FAILED == run([*words, "--scm", address])
        said = capsys.readouterr().err
        assert what in said
        assert "HOST:PORT" in said


def test_typer_is_what_is_walked() -> None:
    """
    The words of the walk are those of the program that runs.
    """
    assert isinstance(program(None), typer.Typer)
