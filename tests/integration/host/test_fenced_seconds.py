"""Two volumes of one host have the same container, and the one that serves it fails."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.errors import VolumeFailed
from agent.scan.container_scan import scan_container
from agent.store import volume_services
from agent.store.index.rows import ReplicaRow
from agent.store.operations.deleting import delete_replica
from agent.store.volumes.volume import Volume
from merkle.replica import Bcsid, BlockId, ContainerId, ReplicaState
from tests.support.storage.two_volumes import Host, content, filled

ONE = BlockId(1)
WHY = "no answer"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Two volumes with containers."""
    with filled(tmp_path, 4) as made:
        yield made


@pytest.fixture
def number(host: Host) -> ContainerId:
    """Return a container of which b serves a replica, and a has one, too: its disk was away when
    the container was made anew, and is back."""
    container_id = ContainerId(host.on("a")[0])
    host.store.close()
    host.at("a").rename(host.path / "away")
    host.open("a", "b")
    host.write(container_id)
    assert container_id in host.on("b")
    host.at("a").rmdir()
    (host.path / "away").rename(host.path / "a")
    host.store.services.add_volume(host.path / "a")
    return container_id


def volume_of(host: Host, name: str) -> Volume:
    """Return an open volume."""
    return host.store.volume_set.by_id(host.id_of(name))


def put_row(volume: Volume, container_id: ContainerId, row: ReplicaRow) -> None:
    """Set the row of a replica."""
    volume.index.write(lambda rows: rows.put_replica(container_id, row))


def fail(host: Host, name: str) -> tuple[ContainerId, ...]:
    """Fence a volume, as its check does."""
    return host.store.volume_set.fail_volume(host.id_of(name), WHY)


def test_the_other_one_is_served(host: Host, number: ContainerId) -> None:
    """It was refused and reported as gone until a restart, though all of it was there: where it was
    the last copy nobody could read the container."""
    others = set(host.on("b")) - {number}

    gone = fail(host, "b")

    assert {*others, number} == set(gone), "each of them is reported anew"
    assert number in host.on("a")
    data = content(number, ONE)
    assert data == host.store.read(number, ONE, 0, len(data))
    assert not host.store.volume_set.is_lost(number)
    assert () == host.store.unloadable()
    for container_id in others:
        with pytest.raises(VolumeFailed, match=WHY):
            host.store.replica(ContainerId(container_id))


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_others_the_better(host: Host, number: ContainerId, *, is_first: bool) -> None:
    """As a start would choose: the one with more commits, whichever was opened first."""
    host.at("c")
    host.store.services.add_volume(host.path / "c")
    with volume_of(host, "a").index.read() as rows:
        row = rows.replica(number)
    better, worse, served = (volume_of(host, name) for name in ("a", "c", "b"))
    put_row(better, number, replace(row, bcsid=Bcsid(30)))
    put_row(worse, number, replace(row, bcsid=Bcsid(20)))
    volumes = host.store.volume_set
    volumes.working = (better, worse, served) if is_first else (worse, better, served)

    fail(host, "b")

    assert better.volume_id == host.store.volume_id(number)


@pytest.mark.parametrize("state", [ReplicaState.DELETED, ReplicaState.RECOVERING])
def test_none_that_is_going_or_was_never_whole(
    host: Host, number: ContainerId, state: ReplicaState
) -> None:
    """A start would finish its delete: what was deleted does not come back."""
    left = volume_of(host, "a")
    with left.index.read() as rows:
        row = rows.replica(number)
    put_row(left, number, replace(row, state=state))

    fail(host, "b")

    with pytest.raises(VolumeFailed, match=WHY):
        host.store.replica(number)


def test_one_whose_row_cannot_be_read_stops_no_fence(host: Host, number: ContainerId) -> None:
    """The failed volume is served no more in any case."""
    key = number.to_bytes(8)
    volume_of(host, "a").index.write(
        lambda rows: rows._txn.put(key, b"damaged", db=rows._dbs.replicas)
    )

    fail(host, "b")

    assert host.store.volume_set.is_lost(number)


def test_one_that_was_just_being_deleted_is_served_no_more(
    host: Host, number: ContainerId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was chosen while its delete began: what is served afterwards has to be there."""

    def fenced(*args: Any, **options: Any) -> str:
        fail(host, "b")
        assert number in host.on("a")
        return delete_replica(*args, **options)

    scan_container(host.tools, number)
    monkeypatch.setattr(volume_services, "delete_replica", fenced)

    host.store.services.drop_moved(host.id_of("a"), number)

    assert number not in host.store.replica_ids()
    with pytest.raises(VolumeFailed, match=WHY):
        host.store.create_container(number)


def test_what_was_served_instead_is_not_made_anew_once_deleted(
    host: Host, number: ContainerId
) -> None:
    """The failed volume still has one, which the next start would serve beside the new one."""
    fail(host, "b")
    host.store.delete_container(number, force=True)

    with pytest.raises(VolumeFailed, match=WHY):
        host.store.create_container(number)
