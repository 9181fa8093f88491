"""What a datanode says of itself, when what it knows is not in order."""

from pathlib import Path

from agent.observe.status import About, Observer
from agent.rpc.v1 import container_pb2
from agent.store.store import ReplicaStore
from merkle.replica import ContainerId
from tests.support.stores import closed_replica, open_store

ONE, TWO = ContainerId(1), ContainerId(2)


def observer(store: ReplicaStore) -> Observer:
    """Return the observer of a datanode that does nothing else."""
    about = About(datanode_id="dn1", cluster_id="CID-1", version="1", started_at_ms=0)
    return Observer(about, store, workers=lambda: (), scm_state=lambda: "registered")


def damage_row(store: ReplicaStore, container_id: ContainerId) -> None:
    """Flip a bit of a replica's row behind the store's back."""
    index = store._places[container_id].index
    with index._env.begin(write=True, db=index._databases.replicas) as transaction:
        key = int(container_id).to_bytes(8)
        row = bytearray(transaction.get(key) or b"")
        row[-1] ^= 1
        transaction.put(key, bytes(row))


def test_a_replica_whose_row_is_damaged_is_not_gone(tmp_path: Path) -> None:
    """
    It is in every full report, as one that cannot be loaded; the others are reported as ever.
    """
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
    """
    Its report says so: the control plane forgets it.
    """
    store = open_store(tmp_path)
    closed_replica(store, 1)
    store.delete_container(ONE, force=True)
    asked = observer(store)

    assert [] == list(asked.replica_ids())
    assert container_pb2.DELETED == asked.report(ONE).state
    store.close()
