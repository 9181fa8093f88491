"""Mending shards in place, between real datanodes: by their own rows, from their own stripes."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.plan.reconcile_outcome import ChunkResult, PeerState, ReconcileResult, ReconcileVerdict
from merkle.replica import BlockId, ContainerId, ReplicaState
from suture.ec.scheme import CodecName, Scheme
from suture.errors import Code, UnavailableError
from tests.support.storage.ec_cluster import (
    CONTAINER,
    RecoveringDatanode,
    altered,
    ec_cluster,
    flip,
    groups_of,
    wrong_shard,
)
from tests.support.storage.ec_groups import EncodedGroup
from tests.support.storage.stored_replica import CLUSTER

RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
PAUSES = 5  # of a mend, before the copy ends
WAIT_S = 20.0


class TestChunkRepair:
    @pytest.mark.parametrize("index", [1, 4])
    def test_damaged_chunk_is_rebuilt_from_its_stripe_only(
        self, tmp_path: Path, index: int
    ) -> None:
        """One flipped bit costs the reads of one stripe, and the shard is restored byte for
        byte.
        """
        with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
            cluster.serve()
            flip(cluster.nodes[index], 1, 4096 + 5)

            result = cluster.mend(index, others(index))

            assert (ReconcileVerdict.CONVERGED, 1) == (result.result, result.chunk_count)
            assert 3 * 4096 == result.fetched_bytes
            assert ReplicaState.UNHEALTHY is result.state_before
            cluster.assert_shard(index, index)

    def test_a_lost_block_file_is_rebuilt(self, tmp_path: Path) -> None:
        """
        All chunks of the block come back, also the short last one; other blocks are not read.
        """
        with ec_cluster(tmp_path, RS_3_2, [100_000, 5_000]) as cluster:
            cluster.serve()
            cluster.nodes[2].store.paths(CONTAINER).block_file(BlockId(1)).unlink()

            result = cluster.mend(2, others(2))

            assert ReconcileVerdict.CONVERGED is result.result
            assert {1} == {block for node in (1, 3) for block, _ in cluster.nodes[node].reads}
            cluster.assert_shard(2, 2)

    @pytest.mark.parametrize("is_meanwhile", [False, True])
    def test_a_block_that_was_deleted_holds_up_no_other(
        self, tmp_path: Path, is_meanwhile: bool
    ) -> None:
        """One of two damaged blocks is deleted before the repair, or while the other is
        computed. The other one is repaired, and the shard is whole.
        """
        with ec_cluster(tmp_path, RS_3_2, [20_000] * 3) as cluster:
            cluster.serve()
            for block_id in (1, 3):
                flip(cluster.nodes[2], block_id, 5)
            cluster.nodes[2].scan(CONTAINER)

            def delete(block_id: int) -> bool:
                for index in RS_3_2.indexes:
                    cluster.nodes[index].store.free_blocks(CONTAINER, [BlockId(block_id)])
                return False

            if not is_meanwhile:
                delete(1)
            result = cluster.mend(
                2,
                others(2),
                stop=(lambda: delete(3)) if is_meanwhile else (lambda: False),
                is_scanned=True,
            )

            assert ReconcileVerdict.CONVERGED is result.result
            facts = cluster.nodes[2].store.replica(CONTAINER)
            assert (ReplicaState.CLOSED, 0) == (facts.state, facts.finding_count)

    def test_a_shard_whose_damage_was_deleted_is_read(self, tmp_path: Path) -> None:
        """
        The read that was asked for then was lost with the agent's queue: a mend makes up for it.
        """
        with ec_cluster(tmp_path, RS_3_2, [20_000] * 2) as cluster:
            cluster.serve()
            flip(cluster.nodes[2], 1, 5)
            cluster.nodes[2].scan(CONTAINER)
            cluster.nodes[2].store.free_blocks(CONTAINER, [BlockId(1)])

            result = cluster.mend(2, others(2), is_scanned=True)

            assert (ReplicaState.CLOSED, 0) == (result.state_after, result.fetched_bytes)

    def test_whole_shard_is_not_repaired(self, tmp_path: Path) -> None:
        """No source is read."""
        with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
            cluster.serve()

            result = cluster.mend(3, others(3))

            assert (ReconcileVerdict.NOTHING_TO_DO, 0) == (result.result, result.fetched_bytes)

    def test_rebuilt_chunk_that_contradicts_the_row_is_not_written(self, tmp_path: Path) -> None:
        """A peer's wrong bytes give a chunk other than the one that was written here."""
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2)) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 4096 + 5)
            before = cluster.nodes[1].files(CONTAINER)

            result = cluster.mend(1, [2, 3, 4])

            assert ReconcileVerdict.PARTIAL is result.result
            assert "is not what was written here" in result.chunks[0].message
            assert before == cluster.nodes[1].files(CONTAINER)

    def test_rebuilt_chunk_that_contradicts_the_row_is_a_finding(self, tmp_path: Path) -> None:
        """The shards fit their own rows, and give a chunk other than the one that was written
        here. The finding is in the status, and the rebuilt chunk is kept as evidence, once.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2)) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 4096 + 5)

            results = [cluster.mend(1, [2, 3, 4]) for _ in range(2)]

            store = cluster.nodes[1].store
            [found] = [one for one in store.findings(CONTAINER) if one.is_contradiction]
            assert [{"CONTRADICTORY"}] * 2 == [words(result) for result in results]
            assert (1, 4096, 4096) == (found.block_id, found.offset, found.length_bytes)
            assert "dn-2 (shard 2), dn-3 (shard 3), dn-4 (shard 4)" in found.evidence
            facts = store.replica(CONTAINER)
            assert (1, 1) == (facts.contradiction_count, facts.finding_count)
            [kept] = quarantined(cluster.nodes[1])
            assert (4096, True) == (len(kept), kept != cell_written(1, 1))

    @pytest.mark.parametrize("index", [2, 5])
    def test_bytes_behind_the_last_chunk_go_to_quarantine(self, tmp_path: Path, index: int) -> None:
        """This holds also if a chunk is damaged, too. The shard is restored, and the log has the
        reason.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000]) as cluster:
            cluster.serve()
            node = cluster.nodes[index]
            append(node, b"never written")
            flip(node, 1, 5)

            result = cluster.mend(index, others(index))

            assert (ReconcileVerdict.CONVERGED, 2) == (result.result, result.chunk_count)
            assert {ChunkResult.REPAIRED, ChunkResult.TRIMMED} == {c.result for c in result.chunks}
            assert b"never written" in quarantined(node)
            assert ReplicaState.CLOSED is node.store.replica(CONTAINER).state
            cluster.assert_shard(index, index)

    @pytest.mark.parametrize(
        ("instead", "words"),
        [
            ({1: groups_of(RS_3_2, [62_000])}, "by the length of its group"),
            (
                {4: {1: altered(groups_of(RS_3_2, [50_000])[1], 4, 4)}},
                "the last chunk rebuilt from",
            ),
        ],
    )
    def test_trailing_bytes_are_kept_if_other_shards_disagree(
        self, tmp_path: Path, instead: dict[int, dict[int, EncodedGroup]], words: str
    ) -> None:
        """The other shards have a shorter group, or give another last chunk."""
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=instead) as cluster:
            cluster.serve()
            append(cluster.nodes[1], b"never written")
            before = cluster.nodes[1].files(CONTAINER)

            result = cluster.mend(1, [2, 3, 4])

            [outcome] = result.chunks
            assert (ReconcileVerdict.PARTIAL, ChunkResult.FAILED) == (result.result, outcome.result)
            assert words in outcome.message
            assert before == cluster.nodes[1].files(CONTAINER)

    def test_a_contradiction_is_kept_while_something_damaged_was_not_proven(
        self, tmp_path: Path
    ) -> None:
        """
        Its chunk is whole again, but what lies behind the end could not be cut: not all is known.
        """
        wrong = {3: {1: altered(wrong_shard(RS_3_2)[3][1], 4, 4)}}
        wrong[4] = wrong[3]
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong) as cluster:
            cluster.serve()
            node = cluster.nodes[1]
            flip(node, 1, 4096 + 5)
            cluster.mend(1, [2, 3, 5])
            assert 1 == node.store.replica(CONTAINER).contradiction_count

            flip(node, 1, 4096 + 5)
            append(node, b"never written")
            [outcome] = cluster.mend(1, [2, 3, 4]).chunks

            assert ChunkResult.FAILED is outcome.result
            assert 1 == node.store.replica(CONTAINER).contradiction_count

    def test_a_contradiction_ends_with_the_damage(self, tmp_path: Path) -> None:
        """With one more shard, the row shows which of them is wrong, and the matching chunk is
        installed.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2)) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 4096 + 5)
            cluster.mend(1, [2, 3, 4])

            result = cluster.mend(1, [2, 3, 4, 5])

            accused = {peer.peer_id for peer in result.peers if peer.state is PeerState.BAD_DATA}
            assert (ReconcileVerdict.CONVERGED, {"dn-3"}) == (result.result, accused)
            assert 0 == cluster.nodes[1].store.replica(CONTAINER).contradiction_count
            cluster.assert_shard(1, 1)

    def test_a_contradiction_that_was_not_looked_at_stays(self, tmp_path: Path) -> None:
        """A repair that stopped before the chunk says nothing about it."""
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2)) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 4096 + 5)
            cluster.mend(1, [2, 3, 4])
            flip(cluster.nodes[1], 1, 5)

            result = cluster.mend(1, [2, 3, 4], stop=lambda: True)

            assert (ReconcileVerdict.INTERRUPTED, 1) == (result.result, result.chunk_count)
            assert 1 == cluster.nodes[1].store.replica(CONTAINER).contradiction_count

    def test_repaired_but_unverified_chunk_is_read_and_not_fetched(self, tmp_path: Path) -> None:
        """The process was killed between the last repair and the read that verifies it. The next
        repair does that read first, and needs no source.
        """
        with ec_cluster(tmp_path, RS_3_2, [100_000, 50_000]) as cluster:
            cluster.serve()
            node = cluster.nodes[1]
            flip(node, 1, 5)
            flip(node, 1, 4096 + 5)
            node.store.paths(CONTAINER).block_file(BlockId(2)).unlink()
            with pytest.raises(KeyboardInterrupt):
                cluster.mend(1, others(1), scan=killed)
            assert ReplicaState.UNHEALTHY is node.store.replica(CONTAINER).state

            result = cluster.mend(1, [], is_scanned=True)

            assert (ReconcileVerdict.NOTHING_TO_DO, 0) == (result.result, result.fetched_bytes)
            assert ReplicaState.CLOSED is result.state_after
            cluster.assert_shard(1, 1)

    def test_damage_that_has_passed_is_not_fetched(self, tmp_path: Path) -> None:
        """
        The chunk verifies now, as after a bad cable was changed: no stripe is read for it, and the
        shard is read and whole.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000]) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 5)
            cluster.nodes[1].scan(CONTAINER)
            flip(cluster.nodes[1], 1, 5)

            result = cluster.mend(1, others(1), is_scanned=True)

            assert (ReconcileVerdict.CONVERGED, 0) == (result.result, result.fetched_bytes)
            assert [ChunkResult.SALVAGED] == [one.result for one in result.chunks]
            cluster.assert_shard(1, 1)

    def test_a_read_that_fails_does_not_hide_what_was_repaired(self, tmp_path: Path) -> None:
        """The final read finds the replica busy. That is reported beside the repairs, and the
        next repair reads it.
        """

        def busy(_container_id: object) -> object:
            raise UnavailableError(Code.BUSY, "a copy holds it")

        with ec_cluster(tmp_path, RS_3_2, [50_000]) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 5)

            result = cluster.mend(1, others(1), scan=busy)

            assert ReconcileVerdict.PARTIAL is result.result
            assert [(ChunkResult.REPAIRED, ""), (ChunkResult.FAILED, "a copy holds it")] == [
                (one.result, one.message) for one in result.chunks
            ]
            cluster.mend(1, others(1), is_scanned=True)
            cluster.assert_shard(1, 1)

    def test_damage_that_stays_is_not_read_again_and_again(self, tmp_path: Path) -> None:
        """
        Nothing was written since the scan that found it: the control plane may order it as often as
        it likes, the shard is not read for it.
        """
        scans: list[ContainerId] = []
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2)) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 4096 + 5)
            cluster.nodes[1].scan(CONTAINER)

            for _ in range(3):
                cluster.mend(1, [2, 3, 4], is_scanned=True, scan=scans.append)

            assert [] == scans

    def test_a_shard_whose_index_is_lost_is_read_before_it_is_mended(self, tmp_path: Path) -> None:
        """The adopted shard has one finding, which is about no block. A scan finds the blocks
        without rows, and then they are recorded again.
        """
        with ec_cluster(tmp_path, RS_3_2, [20_000, 5_000]) as cluster:
            cluster.nodes[1].close()
            shutil.rmtree(tmp_path / "dn1" / "hdds" / CLUSTER / "db")
            cluster.nodes[1] = RecoveringDatanode("dn-1", tmp_path / "dn1")
            cluster.serve()
            assert [-1] == [one.block_id for one in cluster.nodes[1].store.findings(CONTAINER)]

            held_up = cluster.mend(1, others(1), is_scanned=True, scan=lambda _: None)
            result = cluster.mend(1, others(1), is_scanned=True)

            assert [ChunkResult.SKIPPED] == [one.result for one in held_up.chunks]
            assert {1, 2} == {one.block_id for one in result.chunks}
            assert {ChunkResult.REPAIRED} == {one.result for one in result.chunks}
            assert [1, 2] == [
                one.block_id for one in cluster.nodes[1].store.view(CONTAINER).blocks()
            ]

    def test_too_few_peers_are_refused(self, tmp_path: Path) -> None:
        """With two of three needed shards the damage stays, and is reported."""
        with ec_cluster(tmp_path, RS_3_2, [50_000]) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 5)

            with pytest.raises(UnavailableError, match="2 of the 3 sources"):
                cluster.mend(1, [2, 3])

    def test_shard_repair_pauses_while_its_shard_is_copied(self, tmp_path: Path) -> None:
        """Nothing is written until the copy is complete, however often the lease times out. Then
        all is repaired.
        """
        with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster, ThreadPoolExecutor(1) as running:
            cluster.serve()
            flip(cluster.nodes[2], 1, 5)
            damaged, paused = cluster.nodes[2].files(CONTAINER), threading.Semaphore(0)

            def stop() -> bool:
                paused.release()
                return False

            with cluster.nodes[2].replica.leases.share(CONTAINER):
                mending = running.submit(
                    cluster.mend, 2, others(2), stop=stop, lease_timeout_s=0.01
                )
                assert all(paused.acquire(timeout=WAIT_S) for _ in range(PAUSES))
                assert damaged == cluster.nodes[2].files(CONTAINER)
                assert not mending.done()

            assert ReconcileVerdict.CONVERGED is mending.result(WAIT_S).result
            cluster.assert_shard(2, 2)

    def test_a_lease_that_stays_taken_ends_it(self, tmp_path: Path) -> None:
        """Only one chunk's stripe is read for nothing, not those of all damaged chunks."""
        with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
            cluster.serve()
            flip(cluster.nodes[2], 1, 5)
            flip(cluster.nodes[2], 1, 4096 + 5)
            cluster.nodes[2].scan(CONTAINER)

            with cluster.nodes[2].replica.leases.share(CONTAINER):
                result = cluster.mend(2, others(2), stop=lambda: True, lease_timeout_s=0.01)

            assert (ReconcileVerdict.INTERRUPTED, 1) == (result.result, result.chunk_count)
            assert 3 * 4096 == result.fetched_bytes


def killed(_container_id: object) -> object:
    """Stand for the read that closes a mend, in a process that did not live to see it."""
    raise KeyboardInterrupt


def cell_written(stripe: int, index: int) -> bytes:
    """What the writer of the one block put into a cell."""
    return groups_of(RS_3_2, [50_000])[1].stripes[stripe][index]


def words(result: ReconcileResult) -> set[str]:
    """Why chunks were left alone."""
    return {one.difference for one in result.chunks if one.result is ChunkResult.SKIPPED}


def append(node: RecoveringDatanode, data: bytes) -> None:
    """Have bytes behind the last chunk of block 1."""
    with node.store.paths(CONTAINER).block_file(BlockId(1)).open("ab") as file:
        file.write(data)


def quarantined(node: RecoveringDatanode) -> list[bytes]:
    """What is kept in quarantine at a datanode."""
    return [path.read_bytes() for path in node.replica.path.glob("hdds/*/quarantine/*.bytes")]


def others(index: int) -> list[int]:
    """The shards beside one."""
    return [other for other in RS_3_2.indexes if other != index]
