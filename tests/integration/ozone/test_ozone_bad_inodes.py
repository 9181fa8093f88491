"""Containers of Ozone of which the system gives errors, or that change while they are read: what is
wrong with one is its own, and all others are read."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from merkle.replica import ContainerId
from ozone.disk import database
from ozone.scrub.history import History
from ozone.scrub.result import ScrubStatus
from ozone.scrub.scrub import ScrubOptions
from scanner.finding import DamageFault, Verdict
from scanner.unreadable_verdict import SPAN_MS_MIN, TRIES_MIN, UnreadableRecord
from suture.runtime.clock import SystemClock
from tests.support.ozone.ozone_scrubs import damage, once, scrubbed
from tests.support.ozone.ozone_volumes import MadeVolume

BAD = ContainerId(2)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[MadeVolume]:
    """A volume of three containers with a block each."""
    made = MadeVolume(tmp_path / "data")
    for number in (1, BAD, 3):
        made.add_container(number)
        made.add_block(number, 10 * number, b"block" * 1_000)
    yield made
    made.close()


@pytest.fixture
def wish(three: MadeVolume, tmp_path: Path) -> ScrubOptions:
    """A scrub of it."""
    return ScrubOptions(data_dirs=[three.root], state_dir=tmp_path / "state")


def bad_inode(monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """Have the system answer with an error where a directory is opened."""
    really = os.open

    def opened(name: Any, *arguments: Any, **more: Any) -> int:
        if name == path:
            raise OSError(number, os.strerror(number), str(path))
        return really(name, *arguments, **more)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_directory_that_gives_an_error_costs_its_own_container(
    three: MadeVolume, wish: ScrubOptions, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """
    The disk with one bad inode is the one that has to be scrubbed: the others are read, and what
    gives errors is doubted.
    """
    chunks = three.folder(BAD) / "chunks"
    bad_inode(monkeypatch, chunks, number)

    results = scrubbed(wish)

    assert [ScrubStatus.WHOLE, ScrubStatus.NOT_READ, ScrubStatus.WHOLE] == [
        results[one].status for one in (1, BAD, 3)
    ]
    assert f"{chunks}: {errno.errorcode[number]}" in results[BAD].why
    with closing(History(wish.state_dir / "DS-made.sqlite")) as history:
        doubt = history.unreadable_record(BAD)
        assert doubt is not None
        assert 1 == doubt.count


def test_a_directory_that_gives_errors_again_and_again_is_unreadable(
    three: MadeVolume, wish: ScrubOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A permanent error becomes a finding with its blocks, because a container cannot stay
    unread for ever.
    """
    bad_inode(monkeypatch, three.folder(BAD) / "chunks", errno.EACCES)
    scrubbed(wish)
    now_ms = SystemClock().now_ms()
    with closing(History(wish.state_dir / "DS-made.sqlite")) as history:
        history.put_doubt(BAD, UnreadableRecord(TRIES_MIN, now_ms - SPAN_MS_MIN, now_ms, "EACCES"))

    result = scrubbed(wish)[BAD]

    assert ScrubStatus.DAMAGED is result.status
    assert {DamageFault.CHUNKS_DIRECTORY_MISSING, DamageFault.CHUNK_UNREADABLE} == {
        item.fault for item in result.findings if item.verdict is Verdict.UNREADABLE
    }


def test_a_directory_whose_own_facts_cannot_be_read_costs_its_own_container(
    three: MadeVolume, wish: ScrubOptions
) -> None:
    """
    A link to itself in its place: the system refuses to say even what it is.
    """
    chunks = three.folder(BAD) / "chunks"
    chunks.rename(three.root / "moved")
    chunks.symlink_to(chunks.name)

    results = scrubbed(wish)

    assert [ScrubStatus.WHOLE, ScrubStatus.DAMAGED, ScrubStatus.WHOLE] == [
        results[one].status for one in (1, BAD, 3)
    ]
    assert DamageFault.CHUNKS_DIRECTORY_MISSING in {fault for _, fault in damage(results[BAD])}


def test_a_database_that_gives_an_error_costs_its_own_container(
    three: MadeVolume, wish: ScrubOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    In schema V2 each container has its own, and one may lie on a bad place.
    """
    three.add_container(4, schemaVersion="'2'")
    bad = three.folder(4) / "metadata" / "4-dn-container.db"
    bad.mkdir()
    names_of = database._names

    def names(path: Path) -> list[str]:
        if path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(bad))
        return names_of(path)

    monkeypatch.setattr(database, "_names", names)

    results = scrubbed(wish)

    assert [ScrubStatus.WHOLE, ScrubStatus.NOT_READ] == [results[one].status for one in (3, 4)]
    assert str(bad) in results[4].why


def lost(path: Path) -> None:
    """Take the descriptor away."""
    path.unlink()


def rotten(path: Path) -> None:
    """Change what the checksum covers."""
    path.write_bytes(path.read_bytes().replace(b"maxSize: 5", b"maxSize: 6"))


def of_another_ozone(path: Path) -> None:
    """Give it a state that nobody knows."""
    path.write_bytes(path.read_bytes().replace(b"state: CLOSED", b"state: RECALLED"))


@pytest.mark.parametrize(
    ("change", "status", "fault"),
    [
        (lost, ScrubStatus.DAMAGED, [DamageFault.DESCRIPTOR_MISSING]),
        (rotten, ScrubStatus.DAMAGED, [DamageFault.DESCRIPTOR_DAMAGED]),
        (of_another_ozone, ScrubStatus.WHOLE, []),
    ],
)
def test_a_descriptor_that_changes_while_its_container_is_read_ends_no_scrub(
    three: MadeVolume,
    wish: ScrubOptions,
    change: Callable[[Path], None],
    status: ScrubStatus,
    fault: list[DamageFault],
) -> None:
    """The result has the state from when the read began, and the present fault of the
    descriptor.
    """
    results = scrubbed(wish, once(lambda: change(three.descriptor(1))))

    assert [status, ScrubStatus.WHOLE, ScrubStatus.WHOLE] == [
        results[one].status for one in (1, BAD, 3)
    ]
    assert fault == [what for _, what in damage(results[1])]
    assert ("CLOSED", 3) == (results[1].state, results[1].schema)


@pytest.mark.parametrize("name", ["2.container", "2.tree"])
def test_a_pipe_in_the_place_of_a_file_holds_up_no_scrub(
    three: MadeVolume, wish: ScrubOptions, name: str
) -> None:
    """Opening a pipe waits for a writer. It is reported, and the other containers are read."""
    path = three.folder(BAD) / "metadata" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)

    results = scrubbed(wish)

    faults = {item.fault for item in results[BAD].findings if name in item.evidence}
    assert faults & {DamageFault.DESCRIPTOR_DAMAGED, DamageFault.TREE_DAMAGED}
    assert [ScrubStatus.WHOLE] * 2 == [results[number].status for number in (1, 3)]


def test_a_container_that_a_link_leads_to_is_read(
    three: MadeVolume, wish: ScrubOptions, tmp_path: Path
) -> None:
    """An operator moved it to another disk, and Ozone follows the link. A link without a target,
    as to an unmounted disk, is reported.
    """
    folder = three.folder(BAD)
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    three.folder(4).symlink_to(tmp_path / "nowhere")
    three.folder(5).symlink_to(three.folder(5))
    (tmp_path / "moved" / "chunks" / "20.block").unlink()

    results = scrubbed(wish)

    assert {
        1: ScrubStatus.WHOLE,
        2: ScrubStatus.DAMAGED,
        3: ScrubStatus.WHOLE,
        4: ScrubStatus.NOT_READ,
        5: ScrubStatus.NOT_READ,
    } == {number: result.status for number, result in results.items()}
