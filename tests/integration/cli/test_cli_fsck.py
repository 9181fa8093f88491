"""`suture fsck`: 0 for a clean volume, 2 for one with problems, and nothing is changed."""

from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import run
from merkle.replica import ContainerId
from suture.runtime.exit_codes import ExitCode
from tests.support.printed_json import document_in
from tests.support.storage.three_replicas import ThreeReplicas

CONTAINER = ContainerId(7)


def checked(capsys: pytest.CaptureFixture[str], code: ExitCode, *arguments: str) -> dict[str, Any]:
    """Run `suture fsck --json`; return the report of the only volume."""
    capsys.readouterr()
    assert code == run(["fsck", *arguments, "--json"])
    [report] = document_in(capsys.readouterr().out, "fsck")["volumes"]
    return dict(report)


def test_a_clean_volume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    A volume that was closed cleanly has no problems, read whole or not.
    """
    replicas = ThreeReplicas(tmp_path, CONTAINER)
    volume = replicas.whole_volume()

    report = checked(capsys, ExitCode.OK, str(volume), "--read-data")

    assert [] == report["problems"]
    assert 1 == report["replica_count"]


def test_problems_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    A missing file and flipped bits are each named with their path; the bytes only with --read-data.
    """
    replicas = ThreeReplicas(tmp_path, CONTAINER)
    volume = replicas.damaged_volume()
    before = sorted(path.stat().st_mtime_ns for path in volume.rglob("*.block"))

    quick = checked(capsys, ExitCode.TO_DO, str(volume))
    whole = checked(capsys, ExitCode.TO_DO, str(volume), "--read-data")

    assert len(quick["problems"]) < len(whole["problems"])
    assert all(problem["path"] and problem["message"] for problem in whole["problems"])
    assert before == sorted(path.stat().st_mtime_ns for path in volume.rglob("*.block"))


def test_fsck_refuses_a_directory_that_is_no_volume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory that was never a volume is an error, not a clean report."""
    assert ExitCode.FAILED == run(["fsck", str(tmp_path), "--json"])

    assert str(tmp_path) in document_in(capsys.readouterr().out, "fsck")["error"]["message"]
