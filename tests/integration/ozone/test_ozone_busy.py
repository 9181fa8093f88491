"""Scrubs of containers with much damage, beside a datanode that writes all the time."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agent.scan.container_scan import ScanReport, scan_container
from merkle.replica import ContainerId
from ozone.disk.layout import find_volume
from ozone.scrub import reader
from ozone.scrub.history import History
from ozone.scrub.result import ScrubStatus
from ozone.scrub.scrub import OzoneTools, ScrubOptions
from ozone.scrub.store import OzoneStore
from scanner import finding_collector
from scanner.finding import DamageFault, Forensic
from scanner.replica_scan import STOPPED
from suture.runtime.clock import SystemClock
from tests.support.ozone.ozone_scrubs import BIG, damage, scrubbed
from tests.support.ozone.ozone_volumes import MadeVolume, opened_databases

DAMAGED = range(100, 160)
ELSEWHERE = 4_000_000  # a container whose rows nobody reads here


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which databases were opened."""
    return opened_databases(monkeypatch)


def flip(path: Path) -> None:
    """Change the first byte of a file."""
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def writing(made: MadeVolume) -> Callable[[int], None]:
    """Return a listener that has the datanode write a row at every read."""
    count = iter(range(1, 1_000_000))

    def read(_length_bytes: int) -> None:
        made.put_row(ELSEWHERE, next(count), b"row")

    return read


def at_big(action: Callable[[], None]) -> Callable[[int], None]:
    """Return a listener that acts once, when the large block is read."""
    waiting = [action]

    def read(length_bytes: int) -> None:
        if length_bytes == len(BIG) and waiting:
            waiting.pop()()

    return read


@pytest.mark.parametrize("lose", [flip, Path.unlink])
def test_a_database_is_not_opened_for_each_damaged_block(
    made: MadeVolume, tmp_path: Path, opened: list[Path], lose: Callable[[Path], None]
) -> None:
    """
    Opening a large one takes a second, beside a datanode that feels it: hundreds of damaged blocks
    would be minutes. One look at the rows behind all reads is enough for all.
    """
    for block_id in DAMAGED:
        made.add_block(1, block_id, b"some" * block_id)
        if block_id % 2:
            lose(made.file(1, block_id))

    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    result = scrubbed(wish, writing(made))[1]

    assert list(DAMAGED[1::2]) == [block_id for block_id, _ in damage(result)]
    assert len(opened) <= 3


def test_rows_that_are_damaged_are_not_looked_up_one_by_one(
    made: MadeVolume, tmp_path: Path, opened: list[Path]
) -> None:
    """
    Between them lie whole blocks, of which each is a look of its own.
    """
    for block_id in DAMAGED:
        made.add_block(1, block_id, b"some" * block_id)
        if block_id % 2:
            made.put_row(1, block_id, b"\xff\xff")

    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    result = scrubbed(wish, writing(made))[1]

    assert [(n, DamageFault.BLOCK_ROW_DAMAGED) for n in DAMAGED if n % 2] == damage(result)
    assert len(opened) <= 3


def test_blocks_deleted_during_a_scrub_are_not_reported_lost(
    made: MadeVolume, tmp_path: Path
) -> None:
    """Blocks without a file are findings only if they have a row after the last read and are not
    marked for deletion.
    """
    for block_id in DAMAGED:
        made.add_block(1, block_id, b"some" * block_id)
        made.file(1, block_id).unlink()
    made.add_block(1, 1_000, BIG)
    flip(made.file(1, 1_000))

    def delete() -> None:
        for block_id in DAMAGED[::2]:
            made.drop_row(1, block_id)
        made.condemn(1, DAMAGED[1])

    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    result = scrubbed(wish, at_big(delete))[1]

    lost = [(block_id, DamageFault.BLOCK_FILE_MISSING) for block_id in DAMAGED[3::2]]
    assert [*lost, (1_000, DamageFault.CHUNK_CHECKSUM)] == damage(result)
    assert len(lost) + 2 == result.finding_count  # there is no tree, which is noted


def test_a_row_that_is_another_behind_the_last_read_has_its_container_read_again(
    made: MadeVolume, tmp_path: Path
) -> None:
    """A reconcile rewrote chunk and row, so the finding is about a block that no longer exists."""
    flip(made.file(1, 9))
    made.add_block(1, 11, BIG)

    def mend() -> None:
        made.add_block(1, 9, b"another" * 1000)

    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    result = scrubbed(wish, at_big(mend))[1]

    assert ([], ScrubStatus.WHOLE) == (damage(result), result.status)


def test_damage_is_not_forgotten_with_a_deleted_block_that_had_more(
    made: MadeVolume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Only so many findings are kept of a container. Where those of a deleted block took the place of
    others, it is read again.
    """
    for module in (finding_collector, reader):
        monkeypatch.setattr(module, "FINDINGS_PER_REPLICA_MAX", 20)
    made.add_block(1, 11, *[b"chunk"] * 25)
    made.file(1, 11).write_bytes(b"?" * made.file(1, 11).stat().st_size)
    made.add_block(1, 12, b"lost")
    made.file(1, 12).unlink()
    made.add_block(1, 13, BIG)

    def delete() -> None:
        made.file(1, 11).unlink()
        made.drop_row(1, 11)

    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    result = scrubbed(wish, at_big(delete))[1]

    assert [(12, DamageFault.BLOCK_FILE_MISSING)] == damage(result)


def exchange(made: MadeVolume, one: int, other: int) -> None:
    """Have two files of container 1 change places."""
    first, second = made.file(1, one), made.file(1, other)
    away = first.with_name("away")
    first.rename(away)
    second.rename(first)
    away.rename(second)


def test_search_for_swapped_files_is_paced_and_can_be_cancelled(
    made: MadeVolume, tmp_path: Path
) -> None:
    """Swapped files are read once more to find their blocks, beside a busy datanode. The bytes
    count for the pace, and Ctrl-C ends the search; the next scrub reports the result.
    """
    for block_id, shift in ((11, 0), (12, 1)):
        made.add_block(1, block_id, BIG[shift:] + BIG[:shift])
    exchange(made, 11, 12)
    read: list[int] = []
    paced: list[int] = []

    with closing(History(tmp_path / "history.sqlite")) as history:
        store = OzoneStore(
            find_volume(made.root), history, tmp_path, SystemClock(), database=made.database
        )
        tools = OzoneTools(store=store)

        def scan(stop: Callable[[], bool]) -> ScanReport:
            read.clear()
            paced.clear()
            return scan_container(
                tools,
                ContainerId(1),
                stop=stop,
                progress=read.append,
                pace=paced.append,
                resumable_s=60.0,
            )

        whole = scan(lambda: False)
        searched = sum(read) - whole.bytes_read
        had, behind = len(read), sum(read) - searched
        ended = scan(lambda: sum(read) > behind)
        seen = len(read)
        again = scan(lambda: False)

    for report in (whole, again):
        looks = [item.forensic for item in report.findings if item.is_damage]
        assert [Forensic.MISDIRECTED] * 2 == looks
    assert 2 * len(BIG) <= searched <= 3 * len(BIG)
    assert read == paced
    assert (False, STOPPED, 2) == (
        ended.committed,
        ended.tripped_reason,
        sum(item.is_damage for item in ended.findings),
    )
    assert seen < had
