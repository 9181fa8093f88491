"""Reconcile where findings and tree are not of one moment: no such replica stays as it is."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.plan.reconcile_outcome import ChunkResult, ReadBack, ReconcileResult, ReconcileVerdict
from agent.scan.container_scan import scan_container
from merkle.replica import BlockId, ReplicaState
from suture.errors import Code, UnavailableError
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER

BLOCK_COUNT = 6
Cluster = list[Datanode]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three datanodes with the same closed container, scanned once, while it was whole."""
    datanodes = [Datanode(f"dn{number}", tmp_path / f"dn{number}") for number in (1, 2, 3)]
    for datanode in datanodes:
        datanode.replica.create(blocks=BLOCK_COUNT)
        datanode.scan()
        datanode.serve()
    yield datanodes
    for datanode in datanodes:
        datanode.close()


def damage(datanode: Datanode) -> None:
    """Flip a bit in each of two chunks of a block."""
    for offset in (20_000, CHUNK_BYTES + 20_000):
        datanode.replica.flip(1, offset)


def state(datanode: Datanode) -> tuple[ReplicaState, int]:
    """Return what the replica is called, and how many findings it has."""
    facts = datanode.replica.store.replica(CONTAINER)
    return facts.state, facts.finding_count


def skipped(result: ReconcileResult) -> list[str]:
    """Return what was left alone, and why."""
    return [one.difference for one in result.chunks if one.result is ChunkResult.SKIPPED]


def after(reads: int) -> Callable[[], bool]:
    """Return what stops a scan when it has asked so often whether to go on."""
    asked = iter(range(reads))
    return lambda: next(asked, None) is None


def test_damage_found_by_an_interrupted_scan_is_repaired(cluster: Cluster) -> None:
    """The scan finds damage and is stopped before it has read all. The known tree is from the
    scan before, and shows the damaged chunks as whole. They are repaired all the same.
    """
    damaged, others = cluster[0], cluster[1:]
    whole = others[0].files()
    damage(damaged)
    report = scan_container(damaged.replica.tools, CONTAINER, stop=after(4))
    assert (ReplicaState.UNHEALTHY, 2) == state(damaged), report
    assert 0 == damaged.replica.store.view(CONTAINER).tree().unhealthy_count

    result = damaged.reconcile(others)

    assert ReconcileVerdict.CONVERGED is result.result, result
    assert CHUNK_BYTES + CHUNK_BYTES + 1 == result.fetched_bytes
    assert (ReplicaState.CLOSED, 0) == state(damaged)
    assert whole == damaged.files()


def test_a_repair_that_no_scan_followed_is_read_though_no_peer_is_whole(cluster: Cluster) -> None:
    """One of two damaged replicas is repaired, and its process is killed before the verifying
    read. The only whole peer dies. Both are known as damaged. The repaired one is read, is
    whole, and serves the other.
    """
    first, second, lender = cluster
    for datanode in (first, second):
        damage(datanode)
        datanode.scan()
    assert ReconcileVerdict.PARTIAL is first.reconcile([second, lender], prove=killed).result
    assert (ReplicaState.UNHEALTHY, 2) == state(first)
    assert lender.files() == first.files()
    lender.stop_serving()

    result = first.reconcile([second])

    assert ["BOTH_UNHEALTHY"] * 2 == skipped(result)
    assert (ReplicaState.CLOSED, 0) == state(first)
    assert ReconcileVerdict.CONVERGED is second.reconcile([first]).result
    assert (ReplicaState.CLOSED, 0) == state(second)


def test_damage_in_a_deleted_block_does_not_stand_against_the_rest(cluster: Cluster) -> None:
    """
    The damaged block is deleted everywhere, as its key was: no peer has it any more, and nothing of
    it has to be right. The replica is read, and is whole.
    """
    damaged, others = cluster[0], cluster[1:]
    damage(damaged)
    damaged.scan()
    for datanode in cluster:
        datanode.replica.store.free_blocks(CONTAINER, [BlockId(1)])

    result = damaged.reconcile(others)

    assert [] == skipped(result)
    assert (ReplicaState.CLOSED, 0) == state(damaged)


def test_damage_that_nobody_can_mend_is_not_read_again_and_again(cluster: Cluster) -> None:
    """
    Two replicas have lost the same chunks, and nothing was written since they were read: the
    control plane may order it as often as it likes, no byte is read for it.
    """
    first, second, _ = cluster
    for datanode in (first, second):
        damage(datanode)
        datanode.scan()
    generation = first.replica.store.generation(CONTAINER)

    for _ in range(3):
        assert ["BOTH_UNHEALTHY"] * 2 == skipped(first.reconcile([second]))

    assert generation == first.replica.store.generation(CONTAINER)
    assert (ReplicaState.UNHEALTHY, 2) == state(first)


def killed(_container_id: object, _changed: object) -> ReadBack:
    """Stand for the read that closes a repair, in a process that did not live to see it."""
    raise UnavailableError(Code.BUSY, "its process was killed")
