"""Views of a database that somebody else writes: how old they may be, and what they survive."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.runtime.clock import SystemClock
from merkle.replica import BlockId, ContainerId
from ozone.disk import database
from ozone.disk.database import BLOCKS, Database
from ozone.disk.layout import find_volume
from ozone.disk.rows import ContainerRows
from ozone.scrub.history import History
from ozone.scrub.store import OzoneStore
from tests.support.ozone.ozone_scrubs import running_volume
from tests.support.ozone.ozone_volumes import MadeVolume, key

HERE = ContainerId(1)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MadeVolume]:
    """A volume whose datanode runs."""
    with running_volume(tmp_path / "data") as volume:
        yield volume


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

    view = Database(made.database, scratch).view(0.0)

    assert view.value(BLOCKS, key(1, 9)) is not None
    assert not {name for name in listed[1] if name.endswith(".sst")} <= set(listed[-1])
    assert [] == list(scratch.iterdir())


def test_a_view_is_used_again_until_something_was_written(made: MadeVolume, scratch: Path) -> None:
    """
    Nothing written: the same view is as good as a new one. One row: it is opened again.
    """
    base = Database(made.database, scratch)
    first = base.view(time.monotonic())
    same = base.view(time.monotonic())
    made.put_row(1, 77, b"written")
    old_enough = base.view(first.opened_at_s)
    fresh = base.view(time.monotonic())

    assert first is same is old_enough
    assert fresh is not first
    assert (None, b"written") == (first.value(BLOCKS, key(1, 77)), fresh.value(BLOCKS, key(1, 77)))


def test_a_database_that_is_not_there_is_named(tmp_path: Path, scratch: Path) -> None:
    """
    The hint says which option of Ozone may have put it elsewhere.
    """
    with pytest.raises(Unavailable, match="does not exist") as refused:
        Database(tmp_path / "nowhere", scratch).view(0.0)

    assert "--db-dir" in refused.value.hint


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
    rows = ContainerRows(Database(made.database, scratch).view(0.0), HERE, 3)

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


def test_a_history_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """
    Neither garbage nor a later format is taken for an empty history.
    """
    garbage, later = tmp_path / "garbage", tmp_path / "later"
    garbage.write_bytes(b"\xff" * 5000)
    with closing(History(later)) as history:
        history._base.execute("PRAGMA user_version=2")

    with pytest.raises(Refused, match="file is not a database"):
        History(garbage)
    with pytest.raises(Refused, match="has format 2"):
        History(later)
