"""Keys and paths that can never be right are refused before anybody is asked."""

from pathlib import Path
from typing import Any

import pytest

from agent.cli.keys import sources_of
from agent.cli.main import run
from suture.client.spool import Spool
from suture.runtime.exit_codes import ExitCode
from suture.wire.mapping.bounds import KEY_BYTES_MAX
from tests.support.printed_json import document_in

NOBODY = "127.0.0.1:9"
NO_UTF8 = "x\udcffy"
LONG = "é" * (KEY_BYTES_MAX // 2) + "k"  # one byte too many


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what runs a command and returns the message with which it is refused."""

    def message(*words: str) -> str:
        assert ExitCode.FAILED == run([*words, "--json", "--scm", NOBODY])
        error = document_in(capsys.readouterr().out)["error"]
        assert "MALFORMED_REQUEST" == error["code"]
        told: str = error["message"]
        assert told.isprintable()
        return told

    return message


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["get", "--output", "x"], "KEY"),
        (["ls"], "PREFIX"),
        (["rm", "--yes", "good"], "KEY"),
        (["put", __file__, "--prefix"], "--prefix"),
    ],
)
def test_a_key_that_cannot_be_is_refused_where_it_is_given(
    refused: Any, words: list[str], where: str
) -> None:
    """
    No UTF-8, or too long; the message names the argument.
    """
    assert f"{where}: 'x\\udcffy' is not UTF-8" in refused(*words, NO_UTF8)
    assert f"has {KEY_BYTES_MAX + 1} bytes, more than {KEY_BYTES_MAX}" in refused(*words, LONG)


@pytest.mark.parametrize("words", [["get", "--output", "x"], ["rm", "--yes"]])
def test_an_empty_key_is_refused(refused: Any, words: list[str]) -> None:
    """The empty text is the prefix of all keys, and no key."""
    assert "KEY: '' is empty" == refused(*words, "")


def test_a_file_whose_key_is_too_long_is_named(refused: Any, tmp_path: Path) -> None:
    """
    Before anything is stored, however many others there are.
    """
    deep = tmp_path
    for _ in range(5):
        deep /= "d" * 220
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"")
    (tmp_path / "other").write_bytes(b"")

    told = refused("put", str(tmp_path), "--replace")

    assert str(deep / "file") in told
    assert f"more than {KEY_BYTES_MAX}" in told


def test_an_empty_path_is_refused(refused: Any) -> None:
    """The empty path is an unset variable of the shell, and not the current directory."""
    assert "invalid path '': expected a file or a directory" == refused("put", "")


@pytest.mark.parametrize("path", ["..", ".", "../../here/sub", "../sub/../../here"])
def test_a_directory_has_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The directory has the same name however it is written, because keys do not begin with
    dots.
    """
    below = tmp_path / "here" / "sub"
    below.mkdir(parents=True)
    (below / "file").write_bytes(b"x")
    monkeypatch.chdir(below)

    with Spool() as spool:
        keys = [source.key for source in sources_of([path], "p/", spool)]

    name = "here/sub" if Path(path).resolve() == tmp_path / "here" else "sub"
    assert [f"p/{name}/file"] == keys
