"""Volumes of Ozone that are bad, or scrubs that are cut off: refused by name, and gone on with."""

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from merkle.replica import BlockId, ContainerId
from ozone.scrub import history
from ozone.scrub.history import History
from ozone.scrub.result import ContainerResult, ScrubStatus
from ozone.scrub.scrub import ScrubListener, ScrubOptions, scrub, state
from scanner.finding import DamageFault
from suture.errors import Code, RefusedError, UnavailableError
from tests.support.ozone.ozone_scrubs import BIG, damage, once, scrubbed
from tests.support.ozone.ozone_volumes import CLUSTER, STORAGE, MadeVolume

WAIT_S = 60.0
FORMAT_PLACE = slice(-12, -8)  # of a table's format version, before the last word


@pytest.fixture
def two(made: MadeVolume, tmp_path: Path) -> tuple[MadeVolume, Path]:
    """A volume whose datanode runs, with container 1, and another one with container 2."""
    other = MadeVolume(tmp_path / "other")
    other.add_container(2)
    other.add_block(2, 1, b"of another volume")
    other.close()
    version = other.root / "hdds" / "VERSION"
    version.write_text(version.read_text().replace("DS-made", "DS-other"))
    other.database.parent.rename(other.database.parent.with_name("DS-other"))
    return made, other.root


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    """Set as soon as the main thread handles SIGINT, which it may do a second after the signal."""
    event = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        event.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    yield event
    signal.signal(signal.SIGINT, before)


# --- bad input -----------------------------------------------------------------------------------


def test_bad_containers_are_refused_by_name_and_the_rest_is_read(
    made: MadeVolume, tmp_path: Path
) -> None:
    """Each has its reason, and the good one is read."""
    made.add_container(2, schemaVersion="'1'")
    made.add_container(3)
    made.descriptor(3).write_bytes(b"\x00garbage")
    made.add_container(4)
    made.add_block(4, 1, b"of a container without descriptor")
    made.descriptor(4).unlink()
    made.add_container(5, state="OPEN")
    made.add_container(6, layOutVersion=1)
    made.add_container(7)
    made.descriptor(7).unlink()
    made.descriptor(7).symlink_to(made.descriptor(7).name)  # to itself: the system refuses it

    results = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))

    assert {
        1: ScrubStatus.WHOLE,
        2: ScrubStatus.NOT_READ,
        3: ScrubStatus.DAMAGED,
        4: ScrubStatus.DAMAGED,
        5: ScrubStatus.SKIPPED,
        6: ScrubStatus.NOT_READ,
        7: ScrubStatus.DAMAGED,
    } == {number: result.status for number, result in results.items()}
    assert "schemaVersion '1'" in results[2].why
    assert [DamageFault.DESCRIPTOR_DAMAGED] == [item.fault for item in results[3].findings]
    assert [DamageFault.DESCRIPTOR_MISSING] == [item.fault for item in results[4].findings]
    assert "layOutVersion 1" in results[6].why
    assert made.descriptor(7).name in results[7].why


def test_a_descriptor_whose_checksum_was_lost_is_looked_at(
    made: MadeVolume, tmp_path: Path
) -> None:
    """
    A bit in the checksum is damage; without any, nothing vouches for state and schema: a person
    looks, now and when the history is asked again.
    """
    made.add_container(2)
    for number, flipped in ((1, b"checksum: t"), (2, b"chebksum: ")):
        text = made.descriptor(number).read_bytes()
        made.descriptor(number).write_bytes(text.replace(b"checksum: ", flipped, 1))
    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")

    results = scrubbed(wish)

    assert [ScrubStatus.DAMAGED, ScrubStatus.DOUBTFUL] == [results[n].status for n in (1, 2)]
    assert [DamageFault.DESCRIPTOR_DAMAGED] == [item.fault for item in results[1].findings]
    assert ("the descriptor has no checksum, which Ozone always writes",) == results[2].caveats()
    with closing(History(wish.state_dir / "DS-made.sqlite")) as history:
        assert results[2] == history.result(ContainerId(2))


def test_rows_of_unknown_kinds_are_told_and_the_rest_is_read(
    made: MadeVolume, tmp_path: Path
) -> None:
    """
    A key that no block has, a checksum type to come and a row of garbage: each in its own way.
    """
    made.add_block(1, 20, b"to come", kind=6)
    made.put_row(1, "key-of-another-kind", b"?")
    made.put_row(1, 21, b"\xff\xff")

    result = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))[1]

    assert (1, 1) == (result.skipped_count, result.unknown_row_count)
    assert "checksum type 6" in result.skipped[BlockId(20)]
    assert [(21, DamageFault.BLOCK_ROW_DAMAGED)] == damage(result)
    assert 2 == result.block_count


def test_unknown_column_families_do_no_harm(tmp_path: Path) -> None:
    """
    A database with one column family more than is known is read.
    """
    volume = MadeVolume(tmp_path / "data", names=("block_data", "metadata", "of_a_later_ozone"))
    volume.add_container(1)
    volume.add_block(1, 9, b"nine")

    result = scrubbed(ScrubOptions(data_dirs=[volume.root], state_dir=tmp_path / "state"))[1]

    volume.close()
    assert (ScrubStatus.WHOLE, 1) == (result.status, result.block_count)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("CURRENT", b"MANIFEST-999999\n"),
        ("CURRENT", b"garbage"),
        ("MANIFEST-*", b"\xff" * 100),
        ("*.log", b"\xff" * 40_000),
    ],
)
def test_a_database_that_cannot_be_read_is_refused_by_name(
    two: tuple[MadeVolume, Path], tmp_path: Path, name: str, content: bytes
) -> None:
    """Each of its containers has the reason why it is not read. Another volume is read as usual."""
    made, other = two
    for path in made.database.glob(name):
        path.write_bytes(content)

    wish = ScrubOptions(data_dirs=[made.root, other], state_dir=tmp_path / "state")
    results = scrubbed(wish)

    assert ScrubStatus.NOT_READ is results[1].status
    assert str(made.database) in results[1].why
    assert ScrubStatus.WHOLE is results[2].status


def test_a_table_that_is_damaged_in_the_middle_is_no_end_of_the_rows(
    made: MadeVolume, tmp_path: Path
) -> None:
    """Rows behind the damage are not lost. A container whose rows cannot all be read gets no
    verdict, and containers with rows elsewhere in the file are read.
    """
    made.add_container(2)
    for number in range(3_000):
        made.put_row(2, 1_000 + number, bytes(100))
    made.compact()
    table = max(made.database.glob("*.sst"), key=lambda path: path.stat().st_size)
    octets = bytearray(table.read_bytes())
    octets[len(octets) // 2] ^= 0xFF
    table.write_bytes(octets)

    results = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))

    assert [ScrubStatus.WHOLE, ScrubStatus.NOT_READ] == [results[1].status, results[2].status]
    assert "Corruption" in results[2].why


@pytest.mark.parametrize("format_version", [2, 3, 4, 5, 6])
def test_tables_of_older_and_newer_versions_are_read(tmp_path: Path, format_version: int) -> None:
    """Every table format that the RocksDB library knows is read."""
    volume = MadeVolume(tmp_path / "data", format_version=format_version)
    volume.add_container(1)
    volume.add_block(1, 9, b"nine")
    volume.compact()
    volume.close()

    result = scrubbed(ScrubOptions(data_dirs=[volume.root], state_dir=tmp_path / "state"))[1]

    assert (ScrubStatus.WHOLE, 1) == (result.status, result.block_count)


def test_tables_of_a_version_to_come_are_refused_by_name(
    two: tuple[MadeVolume, Path], tmp_path: Path
) -> None:
    """
    The containers of that volume are not read, and say why; another volume is read as ever.
    """
    made, other = two
    made.compact()
    for path in made.database.glob("*.sst"):
        octets = bytearray(path.read_bytes())
        octets[FORMAT_PLACE] = (99).to_bytes(4, "little")
        path.write_bytes(octets)

    wish = ScrubOptions(data_dirs=[made.root, other], state_dir=tmp_path / "state")
    results = scrubbed(wish)

    assert [ScrubStatus.NOT_READ, ScrubStatus.WHOLE] == [results[1].status, results[2].status]
    assert "unsupported format_version: 99" in results[1].why
    assert str(made.database) in results[1].why


def test_a_database_in_another_place_is_found_where_it_is_said_to_be(tmp_path: Path) -> None:
    """The layout is Ozone's below hdds.datanode.container.db.dir. Without the option, the error
    names it.
    """
    made = MadeVolume(tmp_path / "data")
    made.add_container(1)
    made.add_block(1, 9, b"nine")
    made.close()
    place = tmp_path / "ssd" / "db" / CLUSTER / STORAGE
    place.mkdir(parents=True)
    made.database.rename(place / "container.db")
    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")

    lost = scrubbed(wish)[1]
    found = scrubbed(replace(wish, database_dirs=[tmp_path / "ssd"]))[1]

    assert [ScrubStatus.NOT_READ, ScrubStatus.WHOLE] == [lost.status, found.status]
    assert "container.db does not exist" in lost.why
    assert "--db-dir" in lost.why


def test_a_log_that_was_torn_by_a_crash_is_read(made: MadeVolume, tmp_path: Path) -> None:
    """
    A log that ends in the middle of an entry has what is before it.
    """
    made.put_row(1, 33, b"the last entry, of which only a part arrived")
    (log,) = made.database.glob("*.log")
    log.write_bytes(log.read_bytes()[:-10])

    result = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))[1]

    assert (ScrubStatus.WHOLE, 2) == (result.status, result.block_count)


def test_a_volume_that_fails_stops_no_other(two: tuple[MadeVolume, Path], tmp_path: Path) -> None:
    """The failed volume is reported by name, and the other one is read to its end. With a single
    volume the error is raised.
    """
    made, other = two
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "DS-made.sqlite").write_bytes(b"garbage" * 100)
    told: list[tuple[Path, str]] = []
    results: list[ContainerResult] = []
    watched = ScrubListener(
        lambda *_: None,
        lambda _: None,
        results.append,
        lambda volume, error: told.append((volume.hdds, str(error))),
    )

    scrub(ScrubOptions(data_dirs=[made.root, other], state_dir=tmp_path / "state"), watched)
    with pytest.raises(RefusedError, match=r"history .*DS-made\.sqlite"):
        scrub(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"), watched)

    assert [(2, ScrubStatus.WHOLE)] == [(item.container_id, item.status) for item in results]
    assert [made.root / "hdds"] * 2 == [path for path, _ in told]
    assert "DS-made.sqlite: file is not a database" in told[0][1]


def test_a_volume_that_goes_away_is_not_one_whose_containers_were_deleted(
    two: tuple[MadeVolume, Path], tmp_path: Path
) -> None:
    """
    A disk that fails off the bus while it is read leaves an empty mount point: its scrub has
    failed, the other volume is read, and once the disk is back the round goes on.
    """
    made, other = two
    made.add_container(3)
    made.add_block(3, 1, BIG)
    hdds, away = made.root / "hdds", made.root / "away"
    told: list[tuple[Path, str]] = []
    results: list[ContainerResult] = []

    def leaves(result: ContainerResult) -> None:
        results.append(result)
        if result.container_id == 1:
            hdds.rename(away)

    wish = ScrubOptions(data_dirs=[made.root, other], state_dir=tmp_path / "state")
    failed = ScrubListener(
        lambda *_: None,
        lambda _: None,
        leaves,
        lambda volume, error: told.append((volume.hdds, str(error))),
    )
    scrub(wish, failed)
    away.rename(hdds)
    rest: list[int] = []
    again = scrubbed(wish, rest.append)

    assert [(1, ScrubStatus.WHOLE), (2, ScrubStatus.WHOLE)] == sorted(
        (item.container_id, item.status) for item in results
    )
    assert [(hdds, f"volume DS-made is no longer at {hdds}")] == told
    assert [ScrubStatus.WHOLE] * 3 == [again[number].status for number in (1, 2, 3)]
    assert len(BIG) <= sum(rest) < len(BIG) + 8_000  # container 1 is not read again


def test_damage_is_reported_if_the_history_cannot_be_written(
    made: MadeVolume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the state is full, or another process holds the history. The damage is
    reported all the same.
    """
    monkeypatch.setattr(history, "BUSY_S", 0.01)
    made.file(1, 10).unlink()
    made.add_container(2)
    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    results: list[ContainerResult] = []
    locks: list[sqlite3.Connection] = []

    def hold() -> None:
        path = wish.state_dir / "DS-made.sqlite"
        locks.append(sqlite3.connect(path, check_same_thread=False))
        locks[0].execute("BEGIN IMMEDIATE")
        made.folder(2).rename(tmp_path / "moved")

    with pytest.raises(UnavailableError, match="database is locked"):  # at the end of the round
        scrub(wish, ScrubListener(lambda *_: None, once(hold), results.append))
    locks[0].close()

    lost = [(10, DamageFault.BLOCK_FILE_MISSING)]
    assert [(1, ScrubStatus.DAMAGED, lost), (2, ScrubStatus.SKIPPED, [])] == [
        (result.container_id, result.status, damage(result)) for result in results
    ]
    assert "database is locked" in results[0].why


def test_volumes_are_read_at_once(two: tuple[MadeVolume, Path], tmp_path: Path) -> None:
    """
    The second is read while the first has to wait.
    """
    made, other = two
    wish = ScrubOptions(data_dirs=[made.root, other], state_dir=tmp_path / "state")
    scrubbed(wish)
    lock = sqlite3.connect(
        wish.state_dir / "DS-made.sqlite", isolation_level=None, check_same_thread=False
    )
    lock.execute("BEGIN EXCLUSIVE")
    order: list[int] = []

    def done(result: ContainerResult) -> None:
        order.append(result.container_id)
        if result.container_id == 2:
            lock.execute("ROLLBACK")

    scrub(wish, ScrubListener(lambda *_: None, lambda _: None, done))

    lock.close()
    assert [2, 1] == order


def test_directory_that_is_no_ozone_volume_is_refused(tmp_path: Path) -> None:
    """The error names the path before anything is read."""
    with pytest.raises(RefusedError, match=r"has no hdds/VERSION") as refused:
        scrubbed(ScrubOptions(data_dirs=[tmp_path], state_dir=tmp_path / "state"))

    assert Code.INCONSISTENT_VOLUME is refused.value.code


# --- going on ------------------------------------------------------------------------------------


class CutOffError(Exception):
    """As Ctrl-C ends a scrub."""


def test_a_scrub_that_was_cut_off_goes_on(made: MadeVolume, tmp_path: Path) -> None:
    """Finished reads are not repeated. The next round reads everything."""
    for number in (2, 3):
        made.add_container(number)
        made.add_block(number, 1, BIG)
    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    reads: list[int] = []

    def cut_off(length_bytes: int) -> None:
        reads.append(length_bytes)
        if sum(reads) > 2 * len(BIG):
            raise CutOffError

    with pytest.raises(CutOffError):
        scrubbed(wish, cut_off)
    rest: list[int] = []
    results = scrubbed(wish, rest.append)
    again: list[int] = []
    scrubbed(wish, again.append)

    assert [ScrubStatus.WHOLE] * 3 == [results[number].status for number in (1, 2, 3)]
    assert len(BIG) <= sum(rest) < 2 * len(BIG)
    assert sum(again) > 2 * len(BIG)


def test_a_read_goes_on_inside_a_container(made: MadeVolume, tmp_path: Path) -> None:
    """A half-read container of many chunks is not started again."""
    made.add_container(2)
    made.add_block(2, 1, *[BIG] * 80)
    wish = ScrubOptions(
        data_dirs=[made.root],
        state_dir=tmp_path / "state",
        container_ids=frozenset({ContainerId(2)}),
    )
    reads: list[int] = []

    def cut_off(length_bytes: int) -> None:
        reads.append(length_bytes)
        if sum(reads) >= 70 * len(BIG):
            raise CutOffError

    with pytest.raises(CutOffError):
        scrubbed(wish, cut_off)
    rest: list[int] = []
    results = scrubbed(wish, rest.append)

    assert ScrubStatus.WHOLE is results[2].status
    assert sum(rest) <= 48 * len(BIG)
    again: list[int] = []
    scrubbed(wish, again.append)
    assert 80 * len(BIG) == sum(again)  # a place that was reached is forgotten


def test_ctrl_c_keeps_what_was_read(
    made: MadeVolume, tmp_path: Path, interrupted: threading.Event
) -> None:
    """
    The place inside a container too: nothing that was read is read again.
    """
    made.add_container(2)
    made.add_block(2, 1, *[BIG] * 80)
    wish = ScrubOptions(
        data_dirs=[made.root],
        state_dir=tmp_path / "state",
        container_ids=frozenset({ContainerId(2)}),
        bytes_per_s_max=200 * len(BIG),
    )
    reads: list[int] = []

    def pressed(length_bytes: int) -> None:
        if sum(reads) < 20 * len(BIG) <= sum(reads) + length_bytes:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupted.wait(WAIT_S)
        reads.append(length_bytes)

    with pytest.raises(KeyboardInterrupt):
        scrubbed(wish, pressed)
    rest: list[int] = []
    results = scrubbed(wish, rest.append)

    assert ScrubStatus.WHOLE is results[2].status
    assert 20 * len(BIG) <= sum(reads) < 80 * len(BIG)
    assert 80 * len(BIG) == sum(reads) + sum(rest)


def test_two_scrubs_do_not_share_a_state(made: MadeVolume, tmp_path: Path) -> None:
    """
    The second is refused while the first runs.
    """
    with (
        state(tmp_path / "state"),
        pytest.raises(RefusedError, match="another scrub uses") as refused,
    ):
        scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))

    assert Code.VOLUME_IN_USE is refused.value.code
