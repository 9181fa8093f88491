"""One table of exit codes: in the code, in the manual, and in what every program does."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import agent.main
import scm.main
from agent.cli.main import run
from agent.cli.program import HELP
from spark_verify import commands, job
from suture.runtime.exit_codes import ExitCode
from suture.terminal.command_help import EXIT_CODES, split_help

ROOT: Final = Path(__file__).resolve().parents[4]
ROW: Final = re.compile(r"^\| (\d+) \|(.*)\|(.*)\|(.*)\|$", re.MULTILINE)
LITERAL: Final = re.compile(r"\b(sys\.exit|SystemExit|typer\.Exit|_Done)\(\d")
SERVERS: Final = {ExitCode.OK, ExitCode.FAILED, ExitCode.USAGE}
JOB: Final = {*ExitCode} - {ExitCode.UNAVAILABLE, ExitCode.READER_GONE}


def test_the_manual_has_the_table() -> None:
    """
    Every code has its row, and a cell is filled where a program ends with it.
    """
    page = (ROOT / "docs" / "operations" / "exit-codes.md").read_text()
    rows = {int(row[0]): row[1:] for row in ROW.findall(page)}

    shown = [{code for code, cells in rows.items() if cells[place].strip()} for place in range(3)]
    assert sorted(ExitCode) == list(rows)
    assert [{*ExitCode} - {ExitCode.DATA_AT_RISK}, SERVERS, JOB] == shown


def test_the_help_names_what_commands_end_with() -> None:
    """`suture --help` lists every exit code of a command."""
    named = {int(line.partition(":")[0]) for line in split_help(HELP)[1][EXIT_CODES]}

    assert {*ExitCode} - {ExitCode.DATA_AT_RISK} == named


@pytest.mark.parametrize("package", ["agent", "ozone", "scm", "spark_verify", "suture"])
def test_no_program_has_codes_of_its_own(package: str) -> None:
    """Only the table defines exit codes."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / package).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if LITERAL.search(line)
    ]

    assert [] == found


@pytest.mark.parametrize(
    ("program", "main"),
    [
        ("suture", lambda: sys.exit(run(sys.argv[1:]))),
        ("suture-agent", agent.main.main),
        ("suture-scm", scm.main.main),
        ("suture-verify", job.main),
    ],
)
@pytest.mark.parametrize("wrong", ["--no-such-option", "--log-level=loud"])
def test_a_wrong_command_line_is_the_same_everywhere(
    program: str,
    main: Callable[[], None],
    wrong: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    All four programs end with 64, and say on stderr why.
    """
    monkeypatch.setattr("sys.argv", [program, wrong])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ExitCode.USAGE == ended.value.code
    assert capsys.readouterr().err


def test_a_control_plane_without_data_is_a_wrong_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control plane does not start in another place instead."""
    monkeypatch.setattr("sys.argv", ["suture-scm"])

    with pytest.raises(SystemExit) as ended:
        scm.main.main()

    assert ExitCode.USAGE == ended.value.code
    assert "--data" in capsys.readouterr().err


def test_a_command_that_no_shell_could_read_is_a_wrong_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes before any file is created."""
    monkeypatch.setattr("sys.argv", ["suture-scm", f"--data={tmp_path}/s", "--verify", "it's"])

    with pytest.raises(SystemExit) as ended:
        scm.main.main()

    assert ExitCode.USAGE == ended.value.code
    assert "invalid --verify 'it's': No closing quotation" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


def test_a_stopped_verification_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Ctrl-C is 130, as of `suture`, and neither clean nor work to do.
    """

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "verify", stopped)
    words = ["suture-verify", str(tmp_path), "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", words)

    with pytest.raises(SystemExit) as ended:
        job.main()

    assert ExitCode.INTERRUPTED == ended.value.code
