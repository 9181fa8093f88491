"""The last full pass over a volume: when it was, what it read, and what became of the findings."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.scan.container_scan import scan_container
from agent.scan.last_pass import last_pass
from merkle.replica import BlockId, ContainerId
from suture.errors import Code, VolumeFailed
from suture.wire.clients.peer import Peer
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.control.scripted_scm import ScriptedScm
from tests.support.faults.victim import Victim
from tests.support.storage.stored_replica import (
    CHUNK_BYTES,
    CLUSTER,
    CONTAINER,
    StoredReplica,
    noise,
    opened,
)
from tests.support.waiting import wait_until

SECOND, THIRD = ContainerId(2), ContainerId(3)
BLOCK: Final = BlockId(2)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store with three closed replicas, none of which was read."""
    for one in opened(tmp_path):
        one.create(SECOND)
        one.create(THIRD)
        yield one


def volume_id(replica: StoredReplica) -> str:
    """Return the id of the only volume."""
    [volume] = replica.store.volume_set.working
    return volume.volume_id


def found_now(replica: StoredReplica) -> pb.ScrubPass:
    """Return the last pass of the only volume."""
    found = last_pass(replica.store, volume_id(replica))
    assert found is not None
    return found


def read(replica: StoredReplica, container_id: ContainerId) -> int:
    """Read a replica whole, in another millisecond than all before; return the time."""
    before_ms = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > before_ms)
    assert scan_container(replica.tools, container_id).committed
    return int(replica.store.replica(container_id).data_scan_at_ms)


def repair(replica: StoredReplica) -> None:
    """Put the first chunk of the damaged block back, as reconcile does with a peer's."""
    chunk = replica.store.view(CONTAINER).block(BLOCK).chunks[0]
    replica.store.repair(CONTAINER).install_chunk(BLOCK, chunk, noise(CHUNK_BYTES, BLOCK * 1_000))


def test_volume_without_a_replica_that_was_read_has_no_pass(replica: StoredReplica) -> None:
    """A volume that is not served has none, either."""
    assert last_pass(replica.store, volume_id(replica)) is None
    assert last_pass(replica.store, "unknown") is None


def test_pass_lasts_from_the_oldest_to_the_newest_read(replica: StoredReplica) -> None:
    """The bytes are those of the replicas that were read, without the third one."""
    oldest_ms, newest_ms = read(replica, SECOND), read(replica, CONTAINER)

    found = found_now(replica)

    read_bytes = sum(replica.store.replica(one).used_bytes for one in (CONTAINER, SECOND))
    assert oldest_ms < newest_ms
    assert found == pb.ScrubPass(
        began_at_ms=oldest_ms, ended_at_ms=newest_ms, read_bytes=read_bytes
    )


def test_damage_and_its_repair_are_counted_from_the_begin_of_the_pass(
    replica: StoredReplica,
) -> None:
    """When all replicas were read again, the damage belongs to no pass any more."""
    read(replica, SECOND)
    replica.flip(BLOCK, 10)
    read(replica, CONTAINER)
    damaged = found_now(replica)
    repair(replica)
    read(replica, CONTAINER)
    repaired = found_now(replica)
    read(replica, CONTAINER)
    read(replica, SECOND)
    later = found_now(replica)

    counts = [(one.found_count, one.resolved_count) for one in (damaged, repaired, later)]
    assert [(1, 0), (1, 1), (0, 0)] == counts


def test_damage_found_by_the_first_read_is_counted(replica: StoredReplica) -> None:
    """Its entry in the history is not older than the read itself."""
    replica.flip(BLOCK, 10)
    read(replica, CONTAINER)

    assert 1 == found_now(replica).found_count


def test_volume_whose_disk_fails_has_no_pass(
    replica: StoredReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status of the other volumes does not depend on it."""
    read(replica, CONTAINER)

    def fail(*_: object, **__: object) -> tuple[int, int]:
        raise VolumeFailed(Code.IO_EXCEPTION, "the disk fails")

    monkeypatch.setattr("agent.scan.last_pass.finding_counts", fail)

    assert last_pass(replica.store, volume_id(replica)) is None


def test_agent_sends_the_last_pass_if_it_is_asked_for(tmp_path: Path) -> None:
    """It survives a restart of the agent. Without the wish, the histories are not read."""
    path = tmp_path / "volume"
    path.mkdir()
    replica = StoredReplica(path)
    replica.create()
    replica.create(SECOND)
    began_ms = read(replica, SECOND)
    replica.flip(BLOCK, 10)
    read(replica, CONTAINER)
    repair(replica)
    read(replica, CONTAINER)
    replica.flip(BLOCK, 10)
    ended_ms = read(replica, CONTAINER)
    read_bytes = sum(replica.store.replica(one).used_bytes for one in (CONTAINER, SECOND))
    replica.close()

    with ScriptedScm(cluster_id=CLUSTER) as scm, Victim(tmp_path / "agent.log") as victim:
        config = tmp_path / "agent.toml"
        config.write_text(
            f'[node]\nlisten = "127.0.0.1:0"\nscm = "{scm.address}"\n'
            f'[storage]\nvolumes = ["{path}"]\nreserve_bytes = 0\n'
            '[scan]\nenabled = false\nwatch = false\n[observe]\nlisten = ""\n'
        )
        with Peer(victim.start(config)) as peer:
            [volume] = peer.scrub_status(with_last_pass=True).volumes
            [without] = peer.scrub_status().volumes
        victim.stop()

    assert volume.last_pass == pb.ScrubPass(
        began_at_ms=began_ms,
        ended_at_ms=ended_ms,
        read_bytes=read_bytes,
        found_count=2,
        resolved_count=1,
    )
    assert not without.HasField("last_pass")
