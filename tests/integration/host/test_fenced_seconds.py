"""Two volumes of one host have the same container, and the one that serves it fails."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.scan.container_scan import scan_container
from agent.store import volume_services
from agent.store.index.rows import ReplicaRow
from agent.store.operations.deleting import delete_replica
from agent.store.volumes.volume import Volume
from merkle.replica import Bcsid, BlockId, ContainerId, ReplicaState
from suture.errors import VolumeFailed
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
    """The other replica was refused and reported as gone until a restart, although all its data
    was there. If it was the last copy, the container was unreadable.
    """
    others = set(host.on("b")) - {number}

    gone = fail(host, "b")

    assert {*others, number} == set(gone), "each of them is reported anew"
    assert number in host.on("a")
    data = content(number, ONE)
    assert data == host.store.view(number).read(ONE, 0, len(data))
    assert not host.store.volume_set.is_lost(number)
    assert () == host.store.unloadable()
    for container_id in others:
        with pytest.raises(VolumeFailed, match=WHY):
            host.store.replica(ContainerId(container_id))


@pytest.mark.parametrize("is_first", [True, False])
def test_fence_serves_the_better_of_two_remaining_replicas(
    host: Host, number: ContainerId, *, is_first: bool
) -> None:
    """The replica with more commits is served, whichever volume was opened first, as at a start."""
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
def test_fence_serves_no_deleting_or_incomplete_replica(
    host: Host, number: ContainerId, state: ReplicaState
) -> None:
    """A start would finish the delete, so the deleted replica must not come back."""
    left = volume_of(host, "a")
    with left.index.read() as rows:
        row = rows.replica(number)
    put_row(left, number, replace(row, state=state))

    fail(host, "b")

    with pytest.raises(VolumeFailed, match=WHY):
        host.store.replica(number)


def test_unreadable_row_does_not_stop_a_fence(host: Host, number: ContainerId) -> None:
    """The failed volume is taken out of service in any case."""
    key = number.to_bytes(8)
    volume_of(host, "a").index.write(
        lambda rows: rows._txn.put(key, b"damaged", db=rows._dbs.replicas)
    )

    fail(host, "b")

    assert host.store.volume_set.is_lost(number)


def test_replica_under_deletion_is_not_served_after_a_fence(
    host: Host, number: ContainerId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence chose it while its delete began. A replica that is served afterwards has to
    exist.
    """

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


def test_container_on_a_failed_volume_is_not_recreated_after_a_delete(
    host: Host, number: ContainerId
) -> None:
    """The failed volume still has a replica, which the next start would serve beside a new one."""
    fail(host, "b")
    host.store.delete_container(number, force=True)

    with pytest.raises(VolumeFailed, match=WHY):
        host.store.create_container(number)
