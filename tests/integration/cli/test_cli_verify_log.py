"""`suture verify-log`: a log that is whole, one that is not, and what only an anchor betrays."""

import json
from pathlib import Path

import pytest

from agent.cli.main import run
from agent.runtime.exits import Exit
from agent.store.verification.log import files_of
from agent.store.verification.reading import log_directory
from tests.support.storage.stored_replica import StoredReplica


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return a volume whose replica was read three times."""
    replica = StoredReplica(tmp_path / "volume")
    replica.create()
    for _ in range(3):
        replica.scan()
    replica.close()
    return tmp_path / "volume"


def lines_of(volume: Path) -> tuple[Path, list[bytes]]:
    """Return the one file of the log, and its lines."""
    directory = log_directory(volume)
    [name] = files_of(directory)
    return directory / name, (directory / name).read_bytes().splitlines(keepends=True)


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    """Return the exit code and the one answer."""
    capsys.readouterr()
    code = run(["verify-log", *arguments, "--json"])
    [answer] = json.loads(capsys.readouterr().out)
    return code, answer


def test_a_whole_log_is_proven(volume: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said how long it is, and what its head is."""
    code, answer = asked(capsys, str(volume))

    assert code == Exit.OK
    assert (1, 4, None) == (answer["first"], answer["count"], answer["gap"])


def test_a_gap_is_named(volume: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which entry, in which file, and what became of it."""
    path, lines = lines_of(volume)
    path.write_bytes(b"".join([*lines[:1], *lines[2:]]))

    code, answer = asked(capsys, str(volume))

    assert code == Exit.TO_DO
    gap = answer["gap"]
    assert isinstance(gap, dict)
    assert ("removed", 2, path.name, 2) == (gap["fault"], gap["entry"], gap["file"], gap["line"])


def test_an_anchor_shows_what_the_chain_cannot(
    volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An end that was cut off at an entry."""
    _, whole = asked(capsys, str(volume))
    anchor = f"{whole['count']}:{whole['head']}"
    path, lines = lines_of(volume)
    path.write_bytes(b"".join(lines[:-1]))

    alone, _ = asked(capsys, str(volume))
    code, answer = asked(capsys, str(volume), "--anchor", anchor)

    assert alone == Exit.OK
    assert code == Exit.TO_DO
    gap = answer["gap"]
    assert isinstance(gap, dict)
    assert gap["fault"] == "truncated"


def test_what_is_no_anchor_and_no_volume_is_refused(volume: Path, tmp_path: Path) -> None:
    """By name, and nothing is proven."""
    assert run(["verify-log", str(volume), "--anchor", "4:abc"]) == Exit.FAILED
    assert run(["verify-log", str(tmp_path / "nowhere")]) == Exit.FAILED
