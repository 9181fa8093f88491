"""Replicas that contradict each other, over real gRPC: each is right by its own rows.

dn1 is the replica at hand, dn2 has what was written, dn3 has other bytes under rows that fit them.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.plan.actions import ConfirmedDeletes, SkipReason
from agent.plan.reconcile_outcome import ChunkResult, ReconcileResult, ReconcileVerdict
from agent.reconcile.survey import SilentHolder
from agent.services.report_messages import replica_report
from merkle.checksum import window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ReplicaState
from scanner.finding import DamageFault, ScanFinding, Verdict
from suture.errors import Code, RefusedError
from tests.support.storage.datanodes import Datanode
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stored_replica import CONTAINER, WINDOW_BYTES, StoredReplica, noise
from tests.support.storage.stores import commit_scan

LENGTH_BYTES = 5_000
BLOCK = BlockId(1)
OTHER_BLOCK = BlockId(2)


def write(replica: StoredReplica, contents: dict[BlockId, bytes]) -> None:
    """Write a container of blocks of one chunk, and close it."""
    replica.store.create_container(CONTAINER)
    for block_id, data in contents.items():
        sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, data)
        chunk = ChunkInfo(0, len(data), ChecksumType.CRC32C, WINDOW_BYTES, sums)
        replica.store.writer(CONTAINER).write_chunk(block_id, chunk, data)
        replica.store.writer(CONTAINER).put_block(BlockData(block_id, Bcsid(block_id), (chunk,)))
    replica.store.close_container(CONTAINER, bcsid=0, force=True)


@dataclass
class Cluster:
    """Three datanodes, and what was written."""

    mine: Datanode
    right: Datanode
    wrong: Datanode
    written: bytes
    lie: bytes

    def block(self, datanode: Datanode) -> bytes:
        """Return the file of the block in question."""
        return datanode.files().get(f"{BLOCK}.block", b"")

    def contradictions(self) -> list[ScanFinding]:
        """Return what is known here of contradictions."""
        findings = self.mine.replica.store.findings(CONTAINER)
        return [finding for finding in findings if finding.verdict is Verdict.CONTRADICTORY]

    def kept(self) -> list[bytes]:
        """Return the bytes in quarantine here, of the block in question."""
        [quarantine] = self.mine.replica.path.glob("hdds/*/quarantine")
        notes = [(path, json.loads(path.read_text())) for path in quarantine.glob("*.json")]
        return [
            path.with_suffix(".bytes").read_bytes()
            for path, note in notes
            if note["block_id"] == BLOCK and note["at_ms"] > 0
        ]


@contextmanager
def clustered(root: Path, seed: int = 0) -> Iterator[Cluster]:
    """Make the three; two of them serve."""
    written, lie = noise(LENGTH_BYTES, 10 + seed), noise(LENGTH_BYTES, 1_000 + seed)
    nodes = [Datanode(f"dn{number}", root / f"dn{number}-{seed}") for number in (1, 2, 3)]
    for node, data in zip(nodes, (written, written, lie), strict=True):
        write(node.replica, {BLOCK: data, OTHER_BLOCK: noise(LENGTH_BYTES, 5)})
    for node in nodes[1:]:
        node.serve()
    yield Cluster(*nodes, written, lie)
    for node in nodes:
        node.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One cluster."""
    with clustered(tmp_path) as made:
        yield made


def skipped(result: ReconcileResult) -> set[str]:
    """Return why chunks were left alone."""
    return {chunk.difference for chunk in result.chunks if chunk.result is ChunkResult.SKIPPED}


class TestIntactRow:
    @pytest.mark.parametrize("seed", range(4))
    def test_with_the_right_peer_down_no_other_bytes_are_taken(
        self, tmp_path: Path, seed: int
    ) -> None:
        """A flipped bit stays a flipped bit, whatever other bytes a peer offers."""
        with clustered(tmp_path, seed) as cluster:
            cluster.mine.replica.flip(BLOCK, 7)
            cluster.mine.scan()
            cluster.right.stop_serving()
            before = cluster.mine.files()

            result = cluster.mine.reconcile([cluster.right, cluster.wrong])

            facts = cluster.mine.replica.store.replica(CONTAINER)
            assert before == cluster.mine.files()
            assert (ReconcileVerdict.PARTIAL, {"CONTRADICTORY"}) == (result.result, skipped(result))
            assert (ReplicaState.UNHEALTHY, 1) == (facts.state, facts.contradiction_count)

    def test_with_the_right_peer_up_its_bytes_are_taken_always(self, tmp_path: Path) -> None:
        """In ten containers of ten, whichever checksum is the larger one."""
        for seed in range(10):
            with clustered(tmp_path, seed) as cluster:
                cluster.mine.replica.flip(BLOCK, 7)
                cluster.mine.scan()

                result = cluster.mine.reconcile([cluster.right, cluster.wrong])

                assert cluster.written == cluster.block(cluster.mine), seed
                assert {"CONTRADICTORY"} == skipped(result)
                assert ReplicaState.CLOSED is cluster.mine.replica.store.replica(CONTAINER).state

    def test_a_lost_file_is_not_filled_with_other_bytes(self, cluster: Cluster) -> None:
        """The row outlives its file, and decides what it was."""
        cluster.mine.replica.file(BLOCK).unlink()
        cluster.mine.scan()

        cluster.mine.reconcile([cluster.wrong])
        between = cluster.block(cluster.mine)
        cluster.mine.reconcile([cluster.right, cluster.wrong])

        assert (b"", cluster.written) == (between, cluster.block(cluster.mine))

    def test_bytes_here_that_fit_a_peers_row_do_not_replace_ours(self, cluster: Cluster) -> None:
        """The medium has the wrong version, and the own row still marks it as damage."""
        cluster.mine.replica.overwrite(BLOCK, 0, cluster.lie)
        cluster.mine.scan()
        row = cluster.mine.replica.store.view(CONTAINER).block(BLOCK)

        cluster.mine.reconcile([cluster.wrong])

        assert row == cluster.mine.replica.store.view(CONTAINER).block(BLOCK)
        assert ReplicaState.UNHEALTHY is cluster.mine.replica.store.replica(CONTAINER).state


class TestStore:
    """The same again below the planner: whatever it believes, the store asks the row."""

    def test_chunk_that_contradicts_the_own_row_is_refused(self, cluster: Cluster) -> None:
        """Bytes that verify under a peer's row are not the bytes that the own row describes."""
        store = cluster.mine.replica.store
        cluster.mine.replica.flip(BLOCK, 7)
        before = cluster.mine.files()
        [chunk] = cluster.wrong.replica.store.view(CONTAINER).block(BLOCK).chunks

        with pytest.raises(RefusedError, match="not match the local row") as refused:
            store.repair(CONTAINER).install_chunk(BLOCK, chunk, cluster.lie)

        assert Code.CHECKSUM_MISMATCH is refused.value.code
        assert before == cluster.mine.files()

    def test_a_row_that_is_intact_is_not_replaced_by_salvage(self, cluster: Cluster) -> None:
        """The row is kept although the bytes here are those of the peer's row."""
        store = cluster.mine.replica.store
        cluster.mine.replica.overwrite(BLOCK, 0, cluster.lie)
        row = store.view(CONTAINER).block(BLOCK)
        [chunk] = cluster.wrong.replica.store.view(CONTAINER).block(BLOCK).chunks

        assert not store.repair(CONTAINER).salvage_chunk(BLOCK, chunk)

        assert row == store.view(CONTAINER).block(BLOCK)


class TestLostRow:
    def test_two_versions_are_a_contradiction(self, cluster: Cluster) -> None:
        """There is no vote: neither version is installed, even if the local bytes fit one of
        them.
        """
        cluster.mine.replica.delete_row(BLOCK)
        cluster.mine.scan()
        before = cluster.mine.files()

        result = cluster.mine.reconcile([cluster.right, cluster.wrong])

        assert before == cluster.mine.files()
        assert "CONTRADICTORY" in skipped(result)
        assert {cluster.written, cluster.lie} == set(cluster.kept())

    def test_single_version_is_not_enough_while_a_holder_is_silent(self, cluster: Cluster) -> None:
        """A holder that the order names and that does not answer could contradict."""
        cluster.mine.replica.delete_row(BLOCK)
        cluster.mine.scan()
        cluster.right.stop_serving()

        result = cluster.mine.reconcile([cluster.wrong], holders=[SilentHolder("dn2")])
        again = cluster.mine.reconcile([cluster.right, cluster.wrong])

        assert "UNCONFIRMED" in skipped(result) & skipped(again)
        assert [] == cluster.contradictions()
        assert BLOCK not in [
            b.block_id for b in cluster.mine.replica.store.view(CONTAINER).blocks()
        ]

    def test_dead_holder_does_not_delay_the_repair_of_a_lost_row(self, cluster: Cluster) -> None:
        """A dead datanode may never return. If it returns with other bytes, both versions are
        kept.
        """
        cluster.mine.replica.delete_row(BLOCK)
        cluster.mine.scan()
        cluster.wrong.stop_serving()

        result = cluster.mine.reconcile(
            [cluster.right], holders=[SilentHolder("dn3", is_dead=True)]
        )
        facts = cluster.mine.replica.store.replica(CONTAINER)
        repaired = cluster.block(cluster.mine)
        cluster.wrong.serve()
        again = cluster.mine.reconcile([cluster.right, cluster.wrong])

        assert cluster.written == repaired
        assert (ReconcileVerdict.CONVERGED, ReplicaState.CLOSED) == (result.result, facts.state)
        assert {"CONTRADICTORY"} == skipped(again)
        assert cluster.written == cluster.block(cluster.mine)

    def test_a_silent_holder_with_the_root_of_a_peer_has_what_that_peer_has(
        self, cluster: Cluster
    ) -> None:
        """The silent holder contradicts no more than that peer does."""
        tree = cluster.right.replica.store.view(CONTAINER).tree().summary()
        cluster.mine.replica.delete_row(BLOCK)
        cluster.mine.scan()

        result = cluster.mine.reconcile([cluster.right], holders=[SilentHolder("dn4", tree)])

        assert cluster.written == cluster.block(cluster.mine)
        assert ReconcileVerdict.CONVERGED is result.result, result


class TestTombstones:
    def test_tombstone_of_one_peer_deletes_nothing(self, cluster: Cluster) -> None:
        """The block stays readable, and the difference is recorded."""
        remove_blocks(cluster.right.replica.store, CONTAINER, [BLOCK])
        cluster.wrong.stop_serving()

        result = cluster.mine.reconcile([cluster.right])

        [finding] = cluster.contradictions()
        assert cluster.written == cluster.block(cluster.mine)
        assert "UNCONFIRMED_DELETE" in skipped(result)
        assert (DamageFault.UNCONFIRMED_DELETE, BLOCK) == (finding.fault, finding.block_id)

    def test_an_ordered_delete_is_followed_and_its_bytes_are_kept(self, cluster: Cluster) -> None:
        """For a time, in quarantine."""
        remove_blocks(cluster.right.replica.store, CONTAINER, [BLOCK])
        cluster.mine.reconcile([cluster.right])

        cluster.mine.reconcile([cluster.right], deletes=ConfirmedDeletes(frozenset({BLOCK})))

        assert b"" == cluster.block(cluster.mine)
        assert [cluster.written] == cluster.kept()
        assert [] == cluster.contradictions()
        assert 0 == cluster.mine.replica.store.replica(CONTAINER).contradiction_count

    def test_tombstones_of_all_other_holders_delete_an_unreferenced_block(
        self, cluster: Cluster
    ) -> None:
        """Two of two holders are enough. They are not if a key names the block, or if a third
        holder is silent, because a dead holder may return with the block.
        """
        for node in (cluster.right, cluster.wrong):
            remove_blocks(node.replica.store, CONTAINER, [BLOCK])
        others = [cluster.right, cluster.wrong]

        cluster.mine.reconcile(others, deletes=ConfirmedDeletes(kept=frozenset({BLOCK})))
        named = cluster.block(cluster.mine)
        cluster.mine.reconcile(others, holders=[SilentHolder("dn4")])
        silent = cluster.block(cluster.mine)
        cluster.mine.reconcile(others, holders=[SilentHolder("dn4", is_dead=True)])
        dead = cluster.block(cluster.mine)
        cluster.mine.reconcile(others)

        assert (cluster.written,) * 3 == (named, silent, dead)
        assert b"" == cluster.block(cluster.mine)


class TestKnowing:
    def test_contradiction_is_kept_until_a_full_reconcile_finds_none(
        self, cluster: Cluster
    ) -> None:
        """A scan does not clear it, the report counts it, and its evidence is kept once. A
        reconcile that reaches every holder and finds nothing clears it.
        """
        store = cluster.mine.replica.store
        cluster.mine.reconcile([cluster.right, cluster.wrong])
        [found] = cluster.contradictions()

        cluster.mine.scan()
        cluster.mine.reconcile([cluster.right, cluster.wrong])
        report = replica_report(store.replica(CONTAINER))
        cluster.mine.replica.store.close()
        cluster.mine.replica.reopen()
        again = cluster.contradictions()
        cluster.mine.reconcile([cluster.right])

        assert (DamageFault.PEER_CONTRADICTS, BLOCK, 0) == (
            found.fault,
            found.block_id,
            found.offset,
        )
        assert "dn3" in found.evidence
        assert [found] == again
        assert (1, 0) == (report.contradiction_count, report.finding_count)
        assert [cluster.lie] == cluster.kept()
        assert [] == cluster.contradictions()
        assert 0 == cluster.mine.replica.store.replica(CONTAINER).contradiction_count

    def test_a_scan_that_was_cut_off_neither_ends_nor_doubles_it(self, cluster: Cluster) -> None:
        """The interrupted scan adds its findings to the known ones."""
        store = cluster.mine.replica.store
        cluster.mine.reconcile([cluster.right, cluster.wrong])
        before = cluster.contradictions()

        commit_scan(
            store,
            CONTAINER,
            tree=store.view(CONTAINER).tree(),
            findings=[],
            complete=False,
        )

        assert 1 == len(before)
        assert before == list(store.findings(CONTAINER))

    @pytest.mark.parametrize("is_dead", [False, True])
    def test_contradiction_stays_while_its_holder_is_silent_or_dead(
        self, cluster: Cluster, *, is_dead: bool
    ) -> None:
        """A contradiction with a holder that does not answer is not resolved."""
        cluster.mine.reconcile([cluster.right, cluster.wrong])

        cluster.mine.reconcile([cluster.right], holders=[SilentHolder("dn3", is_dead=is_dead)])

        assert [SkipReason.CONTRADICTORY.value] == [f.verdict for f in cluster.contradictions()]


class TestCopies:
    """Who gets a copy of a replica knows of it what its source knows."""

    @pytest.fixture
    def fourth(self, tmp_path: Path) -> Iterator[Datanode]:
        """A datanode that has nothing."""
        node = Datanode("dn4", tmp_path / "dn4")
        node.serve()
        yield node
        node.close()

    def test_a_copy_arrives_with_what_contradicts_it(
        self, cluster: Cluster, fourth: Datanode
    ) -> None:
        """The contradiction is no damage, so the copy is CLOSED. It is reported at once, and
        survives scans and restarts.
        """
        cluster.mine.reconcile([cluster.right, cluster.wrong])

        outcome = cluster.mine.replicate(fourth)

        report = replica_report(fourth.replica.store.replica(CONTAINER))
        fourth.scan()
        fourth.replica.store.close()
        fourth.replica.reopen()
        facts = fourth.replica.store.replica(CONTAINER)
        assert 0 == outcome.damaged_chunk_count
        assert (1, 0) == (report.contradiction_count, report.finding_count)
        assert (ReplicaState.CLOSED, 1) == (facts.state, facts.contradiction_count)
        assert cluster.contradictions() == list(fourth.replica.store.findings(CONTAINER))

    def test_a_damaged_copy_arrives_with_both(self, cluster: Cluster, fourth: Datanode) -> None:
        """The damage is marked as such, and what peers contradict beside it."""
        cluster.mine.replica.flip(BLOCK, 7)
        cluster.mine.scan()
        cluster.right.stop_serving()
        cluster.mine.reconcile([cluster.right, cluster.wrong])

        cluster.mine.replicate(fourth)

        facts = fourth.replica.store.replica(CONTAINER)
        assert ReplicaState.UNHEALTHY is facts.state
        assert (1, 1) == (facts.finding_count, facts.contradiction_count)

    def test_copied_contradiction_is_cleared_by_a_full_reconcile(
        self, cluster: Cluster, fourth: Datanode
    ) -> None:
        """The copy clears it by a reconcile that reaches every holder and finds no
        contradiction.
        """
        cluster.mine.reconcile([cluster.right, cluster.wrong])
        cluster.mine.replicate(fourth)

        fourth.reconcile([cluster.right])

        assert 0 == fourth.replica.store.replica(CONTAINER).contradiction_count

    def test_contradiction_about_a_deleted_block_is_not_copied(
        self, cluster: Cluster, fourth: Datanode
    ) -> None:
        """The bytes are gone, so nothing is left to decide."""
        cluster.mine.reconcile([cluster.right, cluster.wrong])
        remove_blocks(cluster.mine.replica.store, CONTAINER, [BLOCK])

        cluster.mine.replicate(fourth)

        assert 0 == fourth.replica.store.replica(CONTAINER).contradiction_count


class TestTrust:
    def test_an_operator_may_decide_otherwise(self, cluster: Cluster) -> None:
        """The version of the trusted peer is installed over what verifies, which is kept."""
        result = cluster.mine.reconcile([cluster.right, cluster.wrong], trusted="dn3")

        assert cluster.lie == cluster.block(cluster.mine)
        assert cluster.written in cluster.kept()
        assert ChunkResult.REPAIRED in {chunk.result for chunk in result.chunks}
        cluster.mine.scan()
        assert ReplicaState.CLOSED is cluster.mine.replica.store.replica(CONTAINER).state
