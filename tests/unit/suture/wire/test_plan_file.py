"""Runs of the verification, as who applies their plan reads them."""

import json
import tracemalloc
from pathlib import Path

import pytest

from health.tables.snapshot_columns import RESULT_VERSION
from suture.config.bounded_read import ANSWER_BYTES_MAX, read_file_bounded
from suture.errors import RefusedError
from suture.wire.mapping import plan_file
from suture.wire.mapping.plan_file import FinishedRun

MIB = 1024**2
MANIFEST = {"run_id": "r", "snapshot_id": "s", "result_version": RESULT_VERSION}


def written(directory: Path, **said: object) -> str:
    """Write the texts of a finished run; return where."""
    directory.mkdir()
    (directory / "manifest.json").write_text(json.dumps(MANIFEST | said))
    (directory / "_SUCCESS").write_text("")
    return str(directory)


def test_a_run_takes_the_memory_of_what_it_says(tmp_path: Path) -> None:
    """The run does not take the memory of the longest permitted text, because hosts of control
    planes are small.
    """
    run = written(tmp_path / "run_id=r", changed_nodes=["n" * 40] * 10_000)
    FinishedRun.opened(run)
    tracemalloc.start()
    try:
        opened = FinishedRun.opened(run)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(opened.manifest["changed_nodes"]) == 10_000
    assert peak_bytes < 8 * MIB


@pytest.mark.parametrize("file", ["manifest.json", "_SUCCESS"])
def test_a_text_that_is_too_long_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """
    No more of it is read than may be.
    """
    monkeypatch.setattr(plan_file, "TEXT_BYTES_MAX", 4096)
    run = written(tmp_path / "run_id=r")
    known = (tmp_path / "run_id=r" / file).read_text()
    (tmp_path / "run_id=r" / file).write_text(known + " " * (4096 - len(known)))
    FinishedRun.opened(run)
    (tmp_path / "run_id=r" / file).write_text(known + " " * (4097 - len(known)))

    with pytest.raises(
        RefusedError, match=rf"cannot read the plan in .*: {file} has more than 4096 bytes"
    ):
        FinishedRun.opened(run)


def test_shown_plan_file_is_read_with_bounded_memory(tmp_path: Path) -> None:
    """The file may have a quarter of a gigabyte."""
    shown = tmp_path / "shown"
    shown.write_bytes(b"x" * 1000)
    tracemalloc.start()
    try:
        content = read_file_bounded(shown, bytes_max=ANSWER_BYTES_MAX)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert content == b"x" * 1000
    assert peak_bytes < 8 * MIB
    with pytest.raises(OSError, match="it has more than 999 bytes"):
        read_file_bounded(shown, bytes_max=999)
