"""The fire drill: a planted fault is found by the scan, and a scan that finds none is told on."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.scan import canary as canary_module
from agent.scan.canary import Canary
from agent.store.direct_io import ReadBuffers
from agent.store.recovery.fsck import fsck
from merkle.checksum import Algorithm
from tests.support.clock import FakeClock
from tests.support.heard import logged
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, opened

PERIOD_S = 1000.0


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store with a closed container."""
    yield from opened(tmp_path / "volume")


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that stands still."""
    return FakeClock()


@pytest.fixture
def canary(replica: StoredReplica, clock: FakeClock) -> Canary:
    """Return the canary of the store's volume."""
    directory = replica.store.volume_set.canary_directory(replica.store.volumes()[0].volume_id)
    return Canary(directory, Algorithm.XXH3_64, clock, period_s=PERIOD_S)


def test_the_planted_fault_is_found_again_and_again(canary: Canary, clock: FakeClock) -> None:
    """Each drill plants another one."""
    for _ in range(3):
        assert canary.is_due
        assert canary.drill(ReadBuffers())
        assert clock.now_ms() == canary.found_at_ms
        assert not canary.is_due
        clock.advance_s(PERIOD_S)
        assert not canary.is_overdue


def test_a_drill_is_not_logged_as_a_scan_of_a_replica(replica: StoredReplica) -> None:
    """A search for container 1 in the log finds that of this host, on one of its volumes."""
    [volume] = replica.store.volumes()
    directory = replica.store.volume_set.canary_directory(volume.volume_id)
    drill = Canary(
        directory,
        Algorithm.XXH3_64,
        FakeClock(),
        period_s=PERIOD_S,
        volume_id=volume.volume_id,
    )

    with logged() as said:
        assert drill.drill(ReadBuffers())
        replica.scan()

    assert [("canary_found", volume.volume_id), ("replica_scanned", volume.volume_id)] == [
        (entry["event"], entry["volume_id"]) for entry in said
    ]
    assert [CONTAINER] == [entry["container_id"] for entry in said if "container_id" in entry]


def test_a_scan_that_does_not_see_it_is_overdue_within_two_periods(
    canary: Canary, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the fault never reaches the disk: what a blind scan would say of one that did."""
    assert canary.drill(ReadBuffers())
    monkeypatch.setattr(canary_module, "flip_one_bit", lambda _: None)
    clock.advance_s(PERIOD_S)
    assert not canary.drill(ReadBuffers())

    assert not canary.is_overdue
    clock.advance_s(PERIOD_S + 1)
    assert canary.is_overdue


def test_a_drill_that_never_runs_is_overdue(canary: Canary, clock: FakeClock) -> None:
    """A dead or frozen scanner needs no thread of its own to be noticed."""
    clock.advance_s(2 * PERIOD_S + 1)

    assert canary.is_overdue


def test_a_drill_that_was_cut_off_does_not_end_the_next(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill leaves the container of the drill behind."""

    def killed(_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(canary_module, "is_found", killed)
        with pytest.raises(KeyboardInterrupt):
            canary.drill(ReadBuffers())

    assert canary.drill(ReadBuffers())


def cut(directory: Path) -> None:
    """Leave the start of the index only."""
    (index,) = directory.rglob("data.mdb")
    os.truncate(index, 9000)


def garble(directory: Path) -> None:
    """Leave an index that is none."""
    (index,) = directory.rglob("data.mdb")
    index.write_bytes(b"\xa5" * index.stat().st_size)


def empty_version(directory: Path) -> None:
    """Leave what a power cut does of a file that was not synced."""
    (version,) = directory.rglob("VERSION")
    version.write_bytes(b"")


def remove_version(directory: Path) -> None:
    """Leave a volume that was never finished."""
    (version,) = directory.rglob("VERSION")
    version.unlink()


@pytest.mark.parametrize("damage", [cut, garble, empty_version, remove_version])
def test_damaged_canary_store_is_recreated(
    replica: StoredReplica, canary: Canary, clock: FakeClock, damage: Callable[[Path], None]
) -> None:
    """Otherwise the scan would count as blind for ever although only its canary is broken."""
    directory = replica.store.volume_set.canary_directory(replica.store.volumes()[0].volume_id)
    assert canary.drill(ReadBuffers())
    damage(directory)
    clock.advance_s(PERIOD_S)

    assert canary.drill(ReadBuffers())

    clock.advance_s(PERIOD_S)
    assert canary.drill(ReadBuffers())
    assert not canary.is_overdue


def test_canary_is_not_visible_in_the_store(replica: StoredReplica, canary: Canary) -> None:
    """The canary is visible neither at run time, nor after a restart, nor to fsck."""
    before = replica.store.replicas()
    changed: list[int] = []
    replica.store.on_change = changed.append

    canary.drill(ReadBuffers())

    assert (before, [], []) == (replica.store.replicas(), changed, replica.store.findings())
    replica.close()
    assert () == fsck(replica.path).problems
    replica.reopen()
    assert before == replica.store.replicas()
