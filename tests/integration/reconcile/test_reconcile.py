"""Reconcile between real datanodes: whatever was damaged, one round makes the replicas equal."""

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.plan.actions import ConfirmedDeletes
from agent.plan.reconcile_outcome import ChunkResult, PeerState, ReconcileResult, ReconcileVerdict
from agent.reconcile.repair_executor import RepairLimits
from merkle.replica import BlockId, ReplicaState
from suture.wire.clients.peer import Peer
from tests.support.storage.datanodes import Datanode
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER

BLOCK_COUNT = 6
PAUSES = 20
WAIT_S = 20.0
Cluster = list[Datanode]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three datanodes with the same closed container; none serves yet."""
    datanodes = [Datanode(f"dn{number}", tmp_path / f"dn{number}") for number in (1, 2, 3)]
    for datanode in datanodes:
        datanode.replica.create(blocks=BLOCK_COUNT)
    yield datanodes
    for datanode in datanodes:
        datanode.close()


def one_round(cluster: Cluster) -> list[ReconcileResult]:
    """Every replica reconciles once with all others, one after the other."""
    return [
        datanode.reconcile([other for other in cluster if other is not datanode])
        for datanode in cluster
    ]


def serve_all(cluster: Cluster) -> None:
    """Scan, then serve, on every datanode."""
    for datanode in cluster:
        datanode.scan()
        datanode.serve()


def flip(datanode: Datanode) -> int:
    """Flip a bit; return the bytes of the chunks that are damaged by it."""
    datanode.replica.flip(1, 20_000)
    return CHUNK_BYTES


def zero(datanode: Datanode) -> int:
    """Zero a page across two chunks."""
    datanode.replica.overwrite(2, CHUNK_BYTES - 2_048, bytes(4_096))
    return CHUNK_BYTES + CHUNK_BYTES + 2


def truncate(datanode: Datanode) -> int:
    """Cut a file within its first chunk."""
    path = datanode.replica.file(3)
    path.write_bytes(path.read_bytes()[:30_000])
    return CHUNK_BYTES + CHUNK_BYTES + 3


def delete_file(datanode: Datanode) -> int:
    """Remove a block file."""
    datanode.replica.file(4).unlink()
    return CHUNK_BYTES + CHUNK_BYTES + 4


def delete_row(datanode: Datanode) -> int:
    """Remove a metadata row: the bytes are all still there."""
    datanode.replica.delete_row(5)
    return 0


def damage_row(datanode: Datanode) -> int:
    """Flip a bit in a metadata row: the bytes are all still there."""
    datanode.replica.damage_row(5)
    return 0


def flip_and_delete_row(datanode: Datanode) -> int:
    """Lose the row of a block whose first chunk is damaged: its second is still there."""
    datanode.replica.flip(5, 9)
    datanode.replica.delete_row(5)
    return CHUNK_BYTES


def swap_files(datanode: Datanode) -> int:
    """Exchange two block files."""
    first, second = datanode.replica.file(1), datanode.replica.file(2)
    bytes_first = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(bytes_first)
    return 2 * CHUNK_BYTES + 1 + 2 * CHUNK_BYTES + 2


def append_garbage(datanode: Datanode) -> int:
    """Append bytes that nobody wrote."""
    path = datanode.replica.file(6)
    path.write_bytes(path.read_bytes() + b"garbage" * 1_000)
    return 0


def stale_tree(datanode: Datanode) -> int:
    """Put the tree of before a damage back over the one that saw it."""
    path = datanode.replica.store.paths(CONTAINER).tree
    old = path.read_bytes()
    damaged = flip(datanode)
    datanode.scan()
    path.write_bytes(old)
    return damaged


def damage_descriptor(datanode: Datanode) -> int:
    """Flip a bit in the descriptor."""
    path = datanode.replica.store.paths(CONTAINER).descriptor
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    return 0


def delete_chunks_directory(datanode: Datanode) -> int:
    """Remove all data."""
    shutil.rmtree(datanode.replica.store.paths(CONTAINER).chunks)
    return sum(2 * CHUNK_BYTES + number for number in range(1, BLOCK_COUNT + 1))


DAMAGES = [
    flip,
    zero,
    truncate,
    delete_file,
    delete_row,
    damage_row,
    flip_and_delete_row,
    swap_files,
    append_garbage,
    stale_tree,
    damage_descriptor,
    delete_chunks_directory,
]


class TestOneDamagedReplica:
    @pytest.mark.parametrize("damage", DAMAGES)
    def test_is_whole_again(self, cluster: Cluster, damage: Callable[[Datanode], int]) -> None:
        """Every kind of damage is healed by one reconcile, for the bytes of the damage."""
        whole, root = cluster[1].files(), cluster[1].replica.store.view(CONTAINER).tree().root
        damaged_bytes = damage(cluster[0])
        serve_all(cluster)

        result = cluster[0].reconcile(cluster[1:])

        facts = cluster[0].replica.store.replica(CONTAINER)
        assert ReconcileVerdict.CONVERGED is result.result, result
        assert whole == cluster[0].files()
        assert root == cluster[0].replica.store.view(CONTAINER).tree().root
        assert (ReplicaState.CLOSED, 0) == (facts.state, facts.finding_count)
        assert damaged_bytes == result.fetched_bytes
        assert [] == [chunk for chunk in result.chunks if chunk.result is ChunkResult.FAILED]
        assert {PeerState.USED, PeerState.EQUAL} >= {peer.state for peer in result.peers}

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_stays_whole_after_a_restart(
        self, cluster: Cluster, damage: Callable[[Datanode], int]
    ) -> None:
        """The repaired bytes are durable, and a second reconcile has nothing to do."""
        damage(cluster[0])
        serve_all(cluster)
        cluster[0].reconcile(cluster[1:])

        cluster[0].stop_serving()
        cluster[0].replica.close()
        cluster[0].replica.reopen()
        cluster[0].scan()
        again = cluster[0].reconcile(cluster[1:])

        assert ReconcileVerdict.NOTHING_TO_DO is again.result, again
        assert 0 == again.fetched_bytes
        assert cluster[1].files() == cluster[0].files()


class TestAllReplicasDamaged:
    def test_opposite_damage_is_healed_in_one_round(self, cluster: Cluster) -> None:
        """Only the union of the three is whole, and after one round each of them is."""
        whole, root = cluster[0].files(), cluster[0].replica.store.view(CONTAINER).tree().root
        damaged = flip(cluster[0]) + truncate(cluster[0])
        damaged += zero(cluster[1]) + delete_file(cluster[1]) + append_garbage(cluster[1])
        cluster[2].replica.flip(6, 5)
        cluster[2].replica.flip(1, CHUNK_BYTES + 5)
        damaged += CHUNK_BYTES + CHUNK_BYTES + 1 + delete_row(cluster[2])
        serve_all(cluster)

        results = one_round(cluster)

        for datanode in cluster:
            facts = datanode.replica.store.replica(CONTAINER)
            assert whole == datanode.files()
            assert root == datanode.replica.store.view(CONTAINER).tree().root
            assert (ReplicaState.CLOSED, 0) == (facts.state, facts.finding_count)
        assert [ReconcileVerdict.CONVERGED] * 3 == [result.result for result in results], results
        assert damaged == sum(result.fetched_bytes for result in results)

    def test_simultaneous_reconciles_of_all_replicas_converge(self, cluster: Cluster) -> None:
        """The SCM orders all replicas at the same time, so trees change while peers read them."""
        whole = cluster[0].files()
        flip(cluster[0])
        append_garbage(cluster[0])
        zero(cluster[1])
        delete_row(cluster[1])
        truncate(cluster[2])
        delete_file(cluster[2])
        serve_all(cluster)

        with ThreadPoolExecutor(3) as threads:
            results = list(
                threads.map(
                    lambda one: one.reconcile([other for other in cluster if other is not one]),
                    cluster,
                )
            )

        assert [whole] * 3 == [datanode.files() for datanode in cluster]
        assert 1 == len({one.replica.store.view(CONTAINER).tree().root for one in cluster})
        assert [ReconcileVerdict.CONVERGED] * 3 == [result.result for result in results], results

    def test_equal_replicas_compare_roots_only(self, cluster: Cluster) -> None:
        """Nothing is fetched and no chunk is read."""
        serve_all(cluster)

        results = one_round(cluster)

        assert [ReconcileVerdict.NOTHING_TO_DO] * 3 == [result.result for result in results]
        assert 0 == sum(result.fetched_bytes for result in results)
        assert all(result.tree_fetched_bytes < 200 for result in results)
        assert [] == [read for datanode in cluster for read in datanode.reads]

    def test_a_chunk_lost_everywhere_stays_lost_and_is_told(self, cluster: Cluster) -> None:
        """Nothing is invented: the result is partial, and the rest is repaired."""
        for datanode in cluster:
            datanode.replica.flip(1, 7)
        truncate(cluster[0])
        serve_all(cluster)

        result = cluster[0].reconcile(cluster[1:])

        assert ReconcileVerdict.PARTIAL is result.result
        assert ReplicaState.UNHEALTHY is cluster[0].replica.store.replica(CONTAINER).state
        assert [(1, 0, "BOTH_UNHEALTHY")] == [
            (chunk.block_id, chunk.offset, chunk.difference)
            for chunk in result.chunks
            if chunk.result is ChunkResult.SKIPPED
        ]
        assert cluster[1].files()["3.block"] == cluster[0].files()["3.block"]


class TestDeletedBlocks:
    def test_a_tombstone_is_adopted_with_its_data(self, cluster: Cluster) -> None:
        """A delete that was ordered is carried out here, too, though roots agree."""
        remove_blocks(cluster[1].replica.store, CONTAINER, [BlockId(3)])
        serve_all(cluster)
        root = cluster[0].replica.store.view(CONTAINER).tree().root
        assert root == cluster[1].replica.store.view(CONTAINER).tree().root

        ordered = ConfirmedDeletes(frozenset({BlockId(3)}))
        result = cluster[0].reconcile(cluster[1:], deletes=ordered)

        assert ReconcileVerdict.CONVERGED is result.result, result
        assert "3.block" not in cluster[0].files()
        assert root == cluster[0].replica.store.view(CONTAINER).tree().root
        assert {BlockId(3)} == set(cluster[0].replica.store.view(CONTAINER).tombstones())
        assert 0 == result.fetched_bytes


class TestRandomDamage:
    @pytest.mark.parametrize("seed", range(4))
    def test_chunk_whole_on_one_replica_becomes_whole_on_all(
        self, cluster: Cluster, seed: int
    ) -> None:
        """Each chunk is damaged on up to two replicas, in any way. One round repairs all."""
        whole = cluster[0].files()
        dice = random.Random(seed)
        for block in range(1, BLOCK_COUNT + 1):
            spared = dice.randrange(3)
            for datanode in (one for index, one in enumerate(cluster) if index != spared):
                hurt(datanode, block, dice)
        serve_all(cluster)

        results = one_round(cluster)

        assert [whole] * 3 == [datanode.files() for datanode in cluster]
        assert 1 == len({one.replica.store.view(CONTAINER).tree().root for one in cluster})
        assert [0] * 3 == [one.replica.store.replica(CONTAINER).finding_count for one in cluster]
        assert [ReconcileVerdict.CONVERGED] * 3 == [result.result for result in results], results


def hurt(datanode: Datanode, block: int, dice: random.Random) -> None:
    """Damage one block in a random way, or not at all."""
    path = datanode.replica.file(block)
    size_bytes = 2 * CHUNK_BYTES + block
    match dice.randrange(7):
        case 0:
            datanode.replica.flip(block, dice.randrange(size_bytes))
        case 1:
            at = dice.randrange(size_bytes - 4_096)
            datanode.replica.overwrite(block, at, dice.randbytes(4_096))
        case 2:
            path.write_bytes(path.read_bytes()[: dice.randrange(size_bytes)])
        case 3:
            path.unlink()
        case 4:
            path.write_bytes(path.read_bytes() + dice.randbytes(dice.randrange(1, 9_000)))
        case 5:
            datanode.replica.damage_row(block)
        case _:
            pass


def test_reconcile_pauses_while_its_replica_is_copied(cluster: Cluster) -> None:
    """Nothing is written until the copy is complete, however often the lease times out. Then all
    is repaired.
    """
    whole, asked = cluster[1].files(), threading.Semaphore(0)
    flip(cluster[0])
    serve_all(cluster)
    damaged = cluster[0].files()
    reconciler = cluster[0].reconciler(limits=RepairLimits(lease_timeout_s=0.01))

    def stop() -> bool:
        asked.release()
        return False

    with Peer(cluster[1].address) as peer, ThreadPoolExecutor(1) as executor:
        with cluster[0].replica.leases.share(CONTAINER):
            running = executor.submit(reconciler.reconcile, CONTAINER, {"dn2": peer}, stop=stop)
            assert all(asked.acquire(timeout=WAIT_S) for _ in range(PAUSES))
            assert damaged == cluster[0].files()
            assert not running.done()

        assert ReconcileVerdict.CONVERGED is running.result(WAIT_S).result
    assert whole == cluster[0].files()
