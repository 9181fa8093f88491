"""Views of a database that somebody else writes: how old they may be, and what they survive."""

import errno
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from merkle.replica import BlockId, ContainerId
from ozone.disk import database
from ozone.disk.database import BLOCKS, ContainerDatabase
from ozone.disk.layout import find_volume
from ozone.disk.rows import ContainerRows
from ozone.disk.small_files import read_small
from ozone.scrub import history as history_module
from ozone.scrub import reader
from ozone.scrub.history import History
from ozone.scrub.result import ContainerResult
from ozone.scrub.store import OzoneStore
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.clock import SystemClock
from tests.support.ozone.ozone_volumes import MadeVolume, key, opened_databases

HERE = ContainerId(1)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A place for views."""
    path = tmp_path / "scratch"
    path.mkdir()
    return path


def test_a_file_that_compaction_takes_away_between_listing_and_opening_is_no_failure(
    made: MadeVolume, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The directory is listed again.
    """
    made.compact()
    listed: list[list[str]] = []
    names_of = database._names

    def names(path: Path) -> list[str]:
        found = names_of(path)
        listed.append(found)
        if len(listed) == 2:  # the first is of the signature
            made.compact()
        return found

    monkeypatch.setattr(database, "_names", names)

    view = ContainerDatabase(made.database, scratch).view(0.0)

    assert view.value(BLOCKS, key(1, 9)) is not None
    assert not {name for name in listed[1] if name.endswith(".sst")} <= set(listed[-1])
    assert [] == list(scratch.iterdir())


def test_a_view_is_used_again_until_something_was_written(made: MadeVolume, scratch: Path) -> None:
    """
    Nothing written: the same view is as good as a new one. One row: it is opened again.
    """
    base = ContainerDatabase(made.database, scratch)
    first = base.view(time.monotonic())
    same = base.view(time.monotonic())
    made.put_row(1, 77, b"written")
    old_enough = base.view(first.opened_at_s)
    fresh = base.view(time.monotonic())

    assert first is same is old_enough
    assert fresh is not first
    assert (None, b"written") == (first.value(BLOCKS, key(1, 77)), fresh.value(BLOCKS, key(1, 77)))


def test_a_database_that_is_not_there_is_named(tmp_path: Path, scratch: Path) -> None:
    """The hint names the Ozone option that may have moved it."""
    with pytest.raises(UnavailableError, match="does not exist") as refused:
        ContainerDatabase(tmp_path / "nowhere", scratch).view(0.0)

    assert "--db-dir" in refused.value.hint


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which databases were opened, or could not be."""
    return opened_databases(monkeypatch)


def damaged(made: MadeVolume) -> Callable[[], None]:
    """Damage the database; return what heals it."""
    current = made.database / "CURRENT"
    text = current.read_bytes()
    current.write_bytes(b"garbage")

    def heal() -> None:
        current.write_bytes(text)

    return heal


@pytest.mark.parametrize("is_written", [False, True])
def test_a_database_that_cannot_be_opened_is_not_opened_for_each_container(
    made: MadeVolume,
    tmp_path: Path,
    scratch: Path,
    opened: list[Path],
    is_written: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Opening takes seconds, and a volume has ten thousand containers: they would be listed for hours,
    and the service be killed for its silence. A datanode that writes meanwhile changes nothing.
    """
    for name in ("UNCHANGED_S", "CHANGED_S"):
        monkeypatch.setattr(database, name, 3600.0)
    for number in range(2, 40):
        made.add_container(number)
    damaged(made)

    with closing(History(tmp_path / "history.sqlite")) as history:
        store = OzoneStore(
            find_volume(made.root), history, scratch, SystemClock(), database=made.database
        )
        used_bytes = store._used_bytes

        def written(*arguments: Any) -> int:
            if is_written:
                made.put_row(1, 77, b"written")
            return used_bytes(*arguments)

        store._used_bytes = written  # type: ignore[method-assign]
        assert 39 == len(store.listing().replicas)

    assert 2 == len(opened)  # once more, for a compaction that took a file away


def test_a_database_that_was_mended_is_opened_again(
    made: MadeVolume, scratch: Path, opened: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure is remembered for a time, and for a shorter one if the volume was written to."""
    base, heal = ContainerDatabase(made.database, scratch), damaged(made)
    with pytest.raises(UnavailableError, match=r"container\.db") as first:
        base.view(0.0)
    with pytest.raises(UnavailableError) as again:
        base.view(time.monotonic())
    monkeypatch.setattr(database, "CHANGED_S", 0.0)
    heal()

    assert base.view(0.0).value(BLOCKS, key(1, 9)) is not None

    assert (str(first.value), first.value.code) == (str(again.value), again.value.code)
    assert 3 == len(opened)


def test_a_database_that_recovered_is_opened_again(
    made: MadeVolume, scratch: Path, opened: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A disk may give what it did not give before, and no file has changed.
    """
    base = ContainerDatabase(made.database, scratch)
    monkeypatch.setattr(database, "UNCHANGED_S", 0.0)
    damaged(made)

    for _ in range(2):
        with pytest.raises(UnavailableError):
            base.view(0.0)

    assert 4 == len(opened)


def test_the_files_of_a_closed_container_are_looked_at_once(
    made: MadeVolume, tmp_path: Path, scratch: Path
) -> None:
    """
    In schema V2 a plan is a look at every block file of the volume, millions each minute, if it is
    not remembered: a closed one does not grow. Where a file went, or the container was closed since
    it was written to, they are looked at again.
    """
    made.add_container(2, schemaVersion="'2'")
    for block_id in (1, 2):
        made.file(2, block_id).write_bytes(bytes(1_000))
    with closing(History(tmp_path / "history.sqlite")) as history:
        store = OzoneStore(
            find_volume(made.root), history, scratch, SystemClock(), database=made.database
        )

        def used_bytes() -> int:
            ((_, columns),) = store.columns()
            return int(columns.used_bytes[columns.container_ids == 2][0])

        first = used_bytes()
        made.file(2, 1).write_bytes(bytes(5_000))  # the directory does not change for it
        unseen = used_bytes()
        made.descriptor(2).touch()
        closed = used_bytes()
        made.file(2, 2).unlink()

        assert [2_000, 2_000, 6_000, 5_000] == [first, unseen, closed, used_bytes()]


def test_blocks_come_by_number_and_not_by_text(made: MadeVolume, scratch: Path) -> None:
    """
    Keys are decimal text: 100 stands before 9. Last chunks of files that have no other row stand
    where they belong.
    """
    for number in (100, 99, 1, 2**62):
        made.put_row(1, number, b"row")
    made.put_row(1, 5, b"tail", "last_chunk_info")
    made.put_row(1, 100, b"tail", "last_chunk_info")
    made.put_row(1, 3000, b"tail", "last_chunk_info")
    made.put_row(2, 6, b"of another container")
    rows = ContainerRows(ContainerDatabase(made.database, scratch).view(0.0), HERE, 3)

    found = [(number, row is not None, tail is not None) for number, row, tail in rows.blocks()]

    assert [
        (1, True, False),
        (5, False, True),
        (9, True, False),
        (10, True, False),
        (99, True, False),
        (100, True, True),
        (3000, False, True),
        (2**62, True, False),
    ] == found
    assert (None, b"tail") == rows.pair(BlockId(5))


def test_large_rows_come_few_at_a_time(made: MadeVolume, scratch: Path) -> None:
    """
    Rows of megabytes, by thousands, would be gigabytes at once.
    """
    for number in range(100, 110):
        made.put_row(1, number, bytes(1024**2))
    view = ContainerDatabase(made.database, scratch).view(0.0)

    sizes = [sum(map(len, rows)) for _, rows in view.batches(BLOCKS, key(1, "1"))]

    assert 10 * 1024**2 <= sum(sizes)
    assert max(sizes) < 6 * 1024**2


def test_a_container_that_came_after_the_view_is_read_with_its_rows(
    made: MadeVolume, tmp_path: Path, scratch: Path
) -> None:
    """
    Without a newer view all of its files would seem never committed.
    """
    with closing(History(tmp_path / "history.sqlite")) as history:
        store = OzoneStore(
            find_volume(made.root), history, scratch, SystemClock(), database=made.database
        )
        list(store.columns())
        made.add_container(2)
        made.add_block(2, 1, b"just arrived")

        reader = store.open_reader(store.begin_scan(ContainerId(2)), buffers=None, pieces=None)
        with closing(reader):
            found = [block_id for block_id, _ in reader.blocks()]

    assert [1] == found


def put(history: History, container_id: int) -> None:
    """Remember something of some length."""
    found = ContainerResult(container_id=ContainerId(container_id), storage_id="", why="w" * 3_000)
    history.put(found, is_whole=True)


def fill(history: History) -> None:
    """Remember more than there is space for."""
    for number in range(2, 20):
        put(history, number)


def test_a_full_disk_is_no_reason_to_remove_a_history(tmp_path: Path) -> None:
    """Removing the history would lose all findings, and the disk would soon be full again. With
    space, the scrub continues.
    """
    with closing(History(tmp_path / "history.sqlite")) as history:
        put(history, 1)
        history._base.execute("PRAGMA max_page_count=12")
        with pytest.raises(UnavailableError, match="database or disk is full") as full:
            fill(history)
        history._base.execute("PRAGMA max_page_count=1000")
        put(history, 20)

        assert {1, 20} <= {result.container_id for result in history.results()}
    assert Code.DISK_OUT_OF_SPACE is full.value.code
    assert "free space" in full.value.hint


def test_a_history_that_somebody_holds_is_not_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds if the disk cannot read it. The hint says where to look."""
    monkeypatch.setattr(history_module, "BUSY_S", 0.01)
    path = tmp_path / "history.sqlite"
    with closing(History(path)) as history, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="database is locked") as held:
            put(history, 1)
        other.execute("ROLLBACK")
        put(history, 1)
    with pytest.raises(RefusedError, match="unable to open") as lost:
        History(tmp_path / "nowhere" / "history.sqlite")

    assert "stop the program" in held.value.hint
    assert "--state-dir" in lost.value.hint
    assert "remove" not in held.value.hint + lost.value.hint


def test_a_read_that_cannot_begin_leaves_nothing_open(
    made: MadeVolume, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read is retried again and again, and may fail for lack of descriptors."""
    made.put_tree(1, {})

    def failing(path: Path, bytes_max: int) -> bytes:
        if path.suffix == ".tree":
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return read_small(path, bytes_max)

    with closing(History(tmp_path / "history.sqlite")) as history:
        store = OzoneStore(
            find_volume(made.root), history, scratch, SystemClock(), database=made.database
        )
        base = store.begin_scan(HERE)
        store.open_reader(base, buffers=None, pieces=None).close()
        before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
        monkeypatch.setattr(reader, "read_small", failing)

        with pytest.raises((OSError, SutureError)):
            store.open_reader(base, buffers=None, pieces=None)

        assert before == sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_a_history_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Garbage and a later format are refused, not taken for an empty history."""
    garbage, later = tmp_path / "garbage", tmp_path / "later"
    garbage.write_bytes(b"\xff" * 5000)
    with closing(History(later)) as history:
        history._base.execute("PRAGMA user_version=2")

    with pytest.raises(RefusedError, match="file is not a database") as refused:
        History(garbage)
    assert "remove it" in refused.value.hint
    with pytest.raises(RefusedError, match="has format 2"):
        History(later)
