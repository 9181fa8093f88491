"""Mending shards in place, between real datanodes: by their own rows, from their own stripes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.ec.scheme import CodecName, Scheme
from agent.errors import Unavailable
from agent.plan.reconcile_outcome import ChunkResult, PeerState, ReconcileResult, Result
from merkle.replica import BlockId, ReplicaState
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

RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
PAUSES = 5  # of a mend, before the copy ends
WAIT_S = 20.0


class TestChunkRepair:
    @pytest.mark.parametrize("index", [1, 4])
    def test_one_chunk_is_rebuilt_from_its_stripe_only(self, tmp_path: Path, index: int) -> None:
        """
        One flipped bit costs the reads of one stripe, and the shard is what it was.
        """
        with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
            cluster.serve()
            flip(cluster.nodes[index], 1, 4096 + 5)

            result = cluster.mend(index, others(index))

            assert (Result.CONVERGED, 1) == (result.result, result.chunk_count)
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

            assert Result.CONVERGED is result.result
            assert {1} == {block for node in (1, 3) for block, _ in cluster.nodes[node].reads}
            cluster.assert_shard(2, 2)

    @pytest.mark.parametrize("is_meanwhile", [False, True])
    def test_a_block_that_was_deleted_holds_up_no_other(
        self, tmp_path: Path, is_meanwhile: bool
    ) -> None:
        """
        Of two damaged blocks one is deleted before the mend, or while the other one is computed.
        That one is mended, and the shard is whole.
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

            assert Result.CONVERGED is result.result
            facts = cluster.nodes[2].store.replica(CONTAINER)
            assert (ReplicaState.CLOSED, 0) == (facts.state, facts.finding_count)

    def test_nothing_damaged_costs_nothing(self, tmp_path: Path) -> None:
        """
        A whole shard asks nobody.
        """
        with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
            cluster.serve()

            result = cluster.mend(3, others(3))

            assert (Result.NOTHING_TO_DO, 0) == (result.result, result.fetched_bytes)

    def test_what_does_not_fit_the_row_is_not_written(self, tmp_path: Path) -> None:
        """
        When a peer's wrong bytes make another chunk than was written here, nothing is written.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2)) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 4096 + 5)
            before = cluster.nodes[1].files(CONTAINER)

            result = cluster.mend(1, [2, 3, 4])

            assert Result.PARTIAL is result.result
            assert "is not what was written here" in result.chunks[0].message
            assert before == cluster.nodes[1].files(CONTAINER)

    def test_what_does_not_fit_the_row_is_a_contradiction(self, tmp_path: Path) -> None:
        """
        Shards that are each right by their own rows, and make something else than was written here:
        a finding that a person finds in the status, with what they make as its evidence, once.
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
    def test_what_lies_behind_the_last_chunk_goes_to_quarantine(
        self, tmp_path: Path, index: int
    ) -> None:
        """
        Also where a chunk is damaged, too; the shard is what it was, and the log says why.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000]) as cluster:
            cluster.serve()
            node = cluster.nodes[index]
            append(node, b"never written")
            flip(node, 1, 5)

            result = cluster.mend(index, others(index))

            assert (Result.CONVERGED, 2) == (result.result, result.chunk_count)
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
                "make something else of its last chunk",
            ),
        ],
    )
    def test_nothing_is_cut_where_the_others_say_otherwise(
        self, tmp_path: Path, instead: dict[int, dict[int, EncodedGroup]], words: str
    ) -> None:
        """
        They know of a shorter group, or make another last chunk: all stays as it is.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=instead) as cluster:
            cluster.serve()
            append(cluster.nodes[1], b"never written")
            before = cluster.nodes[1].files(CONTAINER)

            result = cluster.mend(1, [2, 3, 4])

            [outcome] = result.chunks
            assert (Result.PARTIAL, ChunkResult.FAILED) == (result.result, outcome.result)
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
        """
        With one more shard the row tells which of them is wrong: what fits it is installed.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2)) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 4096 + 5)
            cluster.mend(1, [2, 3, 4])

            result = cluster.mend(1, [2, 3, 4, 5])

            accused = {peer.peer_id for peer in result.peers if peer.state is PeerState.BAD_DATA}
            assert (Result.CONVERGED, {"dn-3"}) == (result.result, accused)
            assert 0 == cluster.nodes[1].store.replica(CONTAINER).contradiction_count
            cluster.assert_shard(1, 1)

    def test_a_contradiction_that_was_not_looked_at_stays(self, tmp_path: Path) -> None:
        """
        A mend that was stopped before it came to the chunk says nothing about it.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2)) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 4096 + 5)
            cluster.mend(1, [2, 3, 4])
            flip(cluster.nodes[1], 1, 5)

            result = cluster.mend(1, [2, 3, 4], stop=lambda: True)

            assert (Result.INTERRUPTED, 1) == (result.result, result.chunk_count)
            assert 1 == cluster.nodes[1].store.replica(CONTAINER).contradiction_count

    def test_too_few_peers_are_refused(self, tmp_path: Path) -> None:
        """
        With two of three needed shards the damage stays, and is told.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000]) as cluster:
            cluster.serve()
            flip(cluster.nodes[1], 1, 5)

            with pytest.raises(Unavailable, match="2 of the 3 sources"):
                cluster.mend(1, [2, 3])

    def test_it_pauses_while_its_shard_is_copied(self, tmp_path: Path) -> None:
        """
        However often the lease's time is over, nothing is written before the copy is; then all is.
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

            assert Result.CONVERGED is mending.result(WAIT_S).result
            cluster.assert_shard(2, 2)

    def test_a_lease_that_stays_taken_ends_it(self, tmp_path: Path) -> None:
        """
        One chunk's stripe is read in vain, not those of all that are damaged.
        """
        with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
            cluster.serve()
            flip(cluster.nodes[2], 1, 5)
            flip(cluster.nodes[2], 1, 4096 + 5)
            cluster.nodes[2].scan(CONTAINER)

            with cluster.nodes[2].replica.leases.share(CONTAINER):
                result = cluster.mend(2, others(2), stop=lambda: True, lease_timeout_s=0.01)

            assert (Result.INTERRUPTED, 1) == (result.result, result.chunk_count)
            assert 3 * 4096 == result.fetched_bytes


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
