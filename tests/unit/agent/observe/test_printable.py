"""Nothing that comes from a disk or the wire is obeyed by a terminal."""

import json
from pathlib import Path

import pytest

from agent.cli.main import run
from suture.errors import Code, RefusedError
from suture.observe import logs
from suture.observe.terminal_escape import printable
from suture.terminal import output

HOSTILE = {
    "a colour": ("\x1b[31mred", "\\x1b[31mred"),
    "a title": ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
    "C1 control": ("a\x9b2Jb", "a\\x9b2Jb"),
    "bidirectional override": ("gnp.\u202etxt", "gnp.\\u202etxt"),
    "isolate": ("\u2066x\u2069", "\\u2066x\\u2069"),
    "zero width": ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
    "forged line": ("a\nerror: b\r\x0b\u2028c\x85", "a\\x0aerror: b\\x0d\\x0b\\u2028c\\x85"),
    "half a pair": ("\udcff\ud800", "\\udcff\\ud800"),
    "tag": ("\U000e0041", "\\U000e0041"),
    "delete": ("\x7f\x00", "\\x7f\\x00"),
}
MARKUP = "[red]x[/red] [link=http://a]y[/link] :skull: [/]"
LETTERS = "Grüße, 日本語, עברית, 🎉 a\\b"


@pytest.mark.parametrize("name", list(HOSTILE))
def test_terminal_control_character_is_shown_as_its_code(name: str) -> None:
    """Control characters have no effect on a terminal."""
    text, shown = HOSTILE[name]

    assert shown == printable(text)


def test_letters_of_every_script_stay() -> None:
    """
    A name is to be read; markup is text like any other.
    """
    assert LETTERS == printable(LETTERS)
    assert MARKUP == printable(MARKUP)


@pytest.mark.parametrize("hostile", [text for text, _ in HOSTILE.values()])
def test_every_output_path_escapes_control_characters(
    hostile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The paths are lines, titles, cells, parts of tables, errors, hints, remarks and the label
    of a progress bar.
    """
    output.print_line(hostile)
    output.print_table(output.grid(hostile, ["a", "b"], [(hostile, MARKUP), (MARKUP, hostile)]))
    for part in output.parts_of(output.grid(hostile, ["a", "b"], [(hostile, hostile)]), 10):
        output.people.print(part)
    output.print_note(hostile)
    output.fail(RefusedError(Code.MALFORMED_REQUEST, hostile, hint=hostile), as_json=False)
    output.fail_usage(hostile, hostile, as_json=False)
    with output.bytes_progress(hostile, 1) as bar:
        shown = str(bar.tasks[0].description)
    captured = capsys.readouterr()

    for text in (captured.out, captured.err, shown):
        assert hostile not in text
        assert all(line.isprintable() for line in text.split("\n")), text
    assert MARKUP in captured.out


def test_json_and_logs_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Machines get the name as it is, in letters that no terminal obeys.
    """
    names = [text for text, _ in HOSTILE.values()]
    output.print_json({"names": names})
    shown = capsys.readouterr().out
    logs.configure("info")
    logs.structlog.get_logger().info("seen", names=names)
    logged = capsys.readouterr().err

    assert {"schema": 1, "names": names} == json.loads(shown)
    for text in (shown, logged):
        assert all(line.isascii() and line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("name", ["\x1b[2Jx", "\u202ex", "[red]x", "\udcff"])
def test_a_path_in_an_error_is_shown_and_not_obeyed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    `put` of a file that is not there, whatever it is called.
    """
    assert 1 == run(["put", str(tmp_path / name)])

    said = capsys.readouterr().err
    assert printable(name) in said
    assert all(line.isprintable() for line in said.split("\n"))
