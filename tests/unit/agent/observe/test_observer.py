"""What a datanode says of itself, when what it knows is not in order."""

from pathlib import Path

import pytest

from agent.observe.datanode_status import DatanodeStatus, ProcessInfo
from agent.observe.metrics import AgentMetrics, registry_of
from agent.store.index.facts import ReplicaFacts
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from suture.errors import Code, VolumeFailed
from suture.wire.v1 import container_pb2, datanode_pb2
from tests.support.control.no_commands import NoCommands
from tests.support.storage.stores import CLUSTER, DATANODE, closed_replica, open_store

ONE, TWO = ContainerId(1), ContainerId(2)


def observer(store: ReplicaStore) -> DatanodeStatus:
    """Return the observer of a datanode that does nothing else."""
    about = ProcessInfo(datanode_id="dn1", cluster_id="CID-1", version="1", started_at_ms=0)
    return DatanodeStatus(
        about,
        store,
        pools=NoCommands(),
        workers=lambda: (),
        scm_state=lambda: "registered",
        clock_offset_ms=lambda: -7_000,
        interval_s=60,
        now_ms=lambda: 1_000_000,
    )


def damage_row(store: ReplicaStore, container_id: ContainerId) -> None:
    """Flip a bit of a replica's row behind the store's back."""
    index = store.volume_set.places[container_id].index
    with index._env.begin(write=True, db=index._databases.replicas) as transaction:
        key = int(container_id).to_bytes(8)
        row = bytearray(transaction.get(key) or b"")
        row[-1] ^= 1
        transaction.put(key, bytes(row))


def test_a_replica_whose_row_is_damaged_is_not_gone(tmp_path: Path) -> None:
    """The replica is in every full report as unloadable, and the others are reported as usual."""
    store = open_store(tmp_path)
    closed_replica(store, 1)
    closed_replica(store, 2)
    damage_row(store, ONE)
    asked = observer(store)

    reports = [asked.report(container_id) for container_id in asked.replica_ids()]
    store.close()

    assert [ONE, TWO] == [report.container_id for report in reports]
    assert [container_pb2.UNHEALTHY, container_pb2.CLOSED] == [r.state for r in reports]
    assert reports[0].load_error
    assert not reports[1].load_error


def test_a_replica_that_was_deleted_is_gone(tmp_path: Path) -> None:
    """Its report says so, and the control plane forgets it."""
    store = open_store(tmp_path)
    closed_replica(store, 1)
    store.delete_container(ONE, force=True)
    asked = observer(store)

    assert [] == list(asked.replica_ids())
    assert container_pb2.DELETED == asked.report(ONE).state
    store.close()


class InDoubt(ReplicaStore):
    """A store whose volume does not answer at the moment."""

    is_silent = False

    def replica(self, container_id: ContainerId) -> ReplicaFacts:
        if self.is_silent:
            raise VolumeFailed(Code.IO_EXCEPTION, "the index cannot be read")
        return super().replica(container_id)


def test_a_volume_in_doubt_is_not_a_replica_that_is_gone(tmp_path: Path) -> None:
    """A failed read says nothing about the replica. A fenced volume does."""
    store = InDoubt.open([tmp_path], cluster_id=CLUSTER, datanode_id=DATANODE)
    closed_replica(store, 1)
    [volume] = store.volumes()
    asked = observer(store)
    store.is_silent = True

    with pytest.raises(VolumeFailed):
        asked.report(ONE)
    store.volume_set.fail_volume(volume.volume_id, "two probes failed")

    assert container_pb2.DELETED == asked.report(ONE).state
    store.close()


def test_clock_that_lags_is_exported_in_negative_seconds(tmp_path: Path) -> None:
    """The metric has the unit of its name."""
    store = open_store(tmp_path)

    registry = registry_of(AgentMetrics(), observer(store), datanode_pb2.ScrubStatusResponse)
    value = registry.get_sample_value("suture_clock_offset_seconds")
    store.close()

    assert -7.0 == value
