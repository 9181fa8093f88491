"""The audit log on real files: complete, bounded, for few eyes, and never through a link."""

import json
import stat
from pathlib import Path

import pytest

from suture.errors import Code, RefusedError
from suture.observe.audit import KEPT_COUNT, REFUSALS, TEXT_CHARACTERS_MAX, AuditLog
from suture.observe.logs import EVENT_COUNT_MAX


def actions(path: Path) -> list[str]:
    """Return the actions in a file."""
    return [json.loads(line)["action"] for line in path.read_text().splitlines()]


def test_the_files_are_bounded_and_hold_what_is_newest(tmp_path: Path) -> None:
    """The log keeps a fixed number of files of a fixed size without a gap between them, and
    other users cannot read them.
    """
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path, file_bytes_max=1_000)

    for number in range(500):
        audit.record(f"action {number}", "OK", who="ada")
    audit.close()

    files = [*(tmp_path / f"audit.jsonl.{i}" for i in range(KEPT_COUNT, 0, -1)), path]
    assert set(files) == set(tmp_path.iterdir())
    assert all(file.stat().st_size <= 1_000 for file in files)
    assert all(not stat.S_IMODE(file.stat().st_mode) & 0o027 for file in files)
    kept = [action for file in files for action in actions(file)]
    assert [f"action {number}" for number in range(500 - len(kept), 500)] == kept


def test_a_file_that_is_renamed_is_made_anew(tmp_path: Path) -> None:
    """Another program may rotate the file. New lines go to a new file."""
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path)
    audit.record("first", "OK")
    path.rename(tmp_path / "yesterday")

    audit.record("second", "OK")
    path.unlink()
    audit.record("third", "OK")
    audit.close()

    assert ["first"] == actions(tmp_path / "yesterday")
    assert ["third"] == actions(path)


def test_a_link_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    """A user who can create names in the directory must not choose the file that an agent
    appends to.
    """
    precious = tmp_path / "precious"
    precious.write_text("")
    path = tmp_path / "audit.jsonl"
    path.symlink_to(precious)

    with pytest.raises(RefusedError) as caught:
        AuditLog(path)
    path.unlink()
    audit = AuditLog(path)
    path.unlink()
    path.symlink_to(precious)
    audit.record("later", "OK")
    audit.close()

    assert Code.INVALID_CONFIG == caught.value.code
    assert str(path) in str(caught.value)
    assert "" == precious.read_text()


def test_refusals_without_end_and_long_texts_are_cut(tmp_path: Path) -> None:
    """
    A stranger fills no disk; what is allowed is written, however much it is.
    """
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path, monotonic_s=lambda: 0.0)
    [refusal, *_] = sorted(REFUSALS)

    for _ in range(EVENT_COUNT_MAX * 2):
        audit.record("Status", refusal, who="mallory")
        audit.record("Balance", "OK", who="ada")
    audit.record("command close", "FAILED", message="x" * 1_000_000)
    audit.close()

    assert EVENT_COUNT_MAX == actions(path).count("Status")
    assert EVENT_COUNT_MAX * 2 == actions(path).count("Balance")
    assert TEXT_CHARACTERS_MAX + 3 == len(json.loads(path.read_text().splitlines()[-1])["message"])
