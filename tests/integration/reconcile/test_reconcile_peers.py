"""Reconcile with peers that lie, die, change their minds or know nothing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.plan.actions import ConfirmedDeletes
from agent.plan.reconcile_outcome import (
    ChunkResult,
    PeerOutcome,
    PeerState,
    ReconcileResult,
    ReconcileVerdict,
)
from agent.reconcile.repair_executor import RepairLimits
from agent.store.operations.repair import ReplicaRepair
from merkle.checksum import window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ReplicaState
from suture.errors import Code, UnavailableError
from suture.wire.clients.block_peer import PeerTimeouts
from suture.wire.clients.peer import Peer
from tests.support.faults.bad_peers import Dying, Garbler, Hanging, Liar, Shifting
from tests.support.storage.datanodes import CountingReads, Datanode, code_of, dialled
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER, WINDOW_BYTES, noise

Cluster = list[Datanode]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three datanodes with the same closed container; none serves yet."""
    datanodes = [Datanode(f"dn{number}", tmp_path / f"dn{number}") for number in (1, 2, 3)]
    for datanode in datanodes:
        datanode.replica.create(blocks=4)
    yield datanodes
    for datanode in datanodes:
        datanode.close()


def peer_of(result: ReconcileResult, peer_id: str) -> PeerOutcome:
    """Return what became of one peer."""
    [found] = [peer for peer in result.peers if peer.peer_id == peer_id]
    return found


class TestBadPeers:
    @pytest.mark.parametrize("service", [Liar, Garbler])
    def test_bytes_that_do_not_verify_are_never_written(
        self, cluster: Cluster, service: type[CountingReads]
    ) -> None:
        """The next source is used, and the bad one is named."""
        whole = cluster[2].files()
        cluster[0].replica.flip(1, 5)
        cluster[0].replica.flip(3, 5)
        cluster[0].scan()
        cluster[1].serve(service)
        cluster[2].serve()

        result = cluster[0].reconcile(cluster[1:])

        assert whole == cluster[0].files()
        assert ReconcileVerdict.PARTIAL is result.result
        assert PeerState.BAD_DATA is peer_of(result, "dn2").state
        assert 0 == peer_of(result, "dn2").chunk_count
        assert 2 == peer_of(result, "dn3").chunk_count
        assert ReplicaState.CLOSED is cluster[0].replica.store.replica(CONTAINER).state

    @pytest.mark.parametrize("service", [Liar, Garbler])
    def test_a_lie_without_an_alternative_changes_nothing(
        self, cluster: Cluster, service: type[CountingReads]
    ) -> None:
        """A bad chunk stays bad rather than becoming another bad one."""
        cluster[0].replica.flip(1, 5)
        cluster[0].scan()
        before = cluster[0].files()
        cluster[1].serve(service)

        result = cluster[0].reconcile(cluster[1:2])

        assert before == cluster[0].files()
        assert ReconcileVerdict.PARTIAL is result.result
        assert [ChunkResult.FAILED] == [chunk.result for chunk in result.chunks]

    def test_a_peer_that_dies_in_the_middle_is_replaced(self, cluster: Cluster) -> None:
        """Another peer serves the rest."""
        whole = cluster[2].files()
        for block in (1, 2, 3, 4):
            cluster[0].replica.flip(block, 5)
        cluster[0].scan()
        cluster[1].serve(Dying)
        cluster[2].serve()

        result = cluster[0].reconcile(cluster[1:])

        assert whole == cluster[0].files()
        assert PeerState.UNREACHABLE is peer_of(result, "dn2").state
        assert 4 == peer_of(result, "dn3").chunk_count

    def test_a_peer_that_hangs_is_asked_a_few_times_only(self, tmp_path: Path) -> None:
        """After its first deadline it is not waited for again."""
        mine, hanging, whole = (Datanode(name, tmp_path / name) for name in ("dn1", "dn2", "dn3"))
        for datanode in (mine, hanging, whole):
            datanode.replica.create(blocks=48)
        for block in range(1, 49):
            mine.replica.flip(block, 5)
            mine.replica.flip(block, CHUNK_BYTES + 5)
        mine.scan()
        hanging.serve(Hanging)
        whole.serve()
        quick = PeerTimeouts(call_s=5, tree_s=5, chunk_s=0.3)
        reconciler = mine.reconciler(limits=RepairLimits(fetch_count_max=2))

        with Peer(hanging.address, timeouts=quick) as slow, Peer(whole.address) as good:
            result = reconciler.reconcile(CONTAINER, {"dn2": slow, "dn3": good})
        Hanging.go_on.set()

        files = whole.files(), mine.files()
        for datanode in (mine, hanging, whole):
            datanode.close()
        assert files[0] == files[1]
        assert 96 == peer_of(result, "dn3").chunk_count
        assert len(hanging.reads) <= 4

    def test_bytes_behind_a_chunk_that_stays_bad_stay(self, cluster: Cluster) -> None:
        """A block that could not be made equal to a peer's is not trimmed either."""
        cluster[0].replica.flip(1, 5)
        path = cluster[0].replica.file(1)
        path.write_bytes(path.read_bytes() + b"garbage")
        cluster[0].scan()
        before = cluster[0].files()
        cluster[1].serve(Liar)

        result = cluster[0].reconcile(cluster[1:2])

        assert before == cluster[0].files()
        assert ReconcileVerdict.PARTIAL is result.result

    def test_a_tree_that_changes_meanwhile_is_read_again(self, cluster: Cluster) -> None:
        """A peer whose replica moved on takes part with what it is now."""
        cluster[0].replica.flip(1, 5)
        cluster[0].replica.flip(3, 5)
        cluster[0].scan()
        cluster[1].serve(Shifting)

        result = cluster[0].reconcile(cluster[1:2])

        assert PeerState.USED is peer_of(result, "dn2").state, result
        assert [(1, ChunkResult.REPAIRED), (3, ChunkResult.SKIPPED)] == sorted(
            (chunk.block_id, chunk.result) for chunk in result.chunks
        )


class TestUnknownPeers:
    def test_a_peer_without_a_tree_leads_to_nothing(self, cluster: Cluster, tmp_path: Path) -> None:
        """An open replica is unknown: not equal, not different."""
        opened = Datanode("dn4", tmp_path / "dn4")
        opened.replica.store.create_container(CONTAINER)
        opened.serve()
        before = cluster[0].files()

        result = cluster[0].reconcile([opened])

        opened.close()
        assert (ReconcileVerdict.NO_PEER, PeerState.NO_TREE) == (
            result.result,
            result.peers[0].state,
        )
        assert before == cluster[0].files()

    def test_an_unreachable_peer_is_named_and_the_rest_is_used(self, cluster: Cluster) -> None:
        """One dead peer is one line in the result, which is partial."""
        whole = cluster[2].files()
        cluster[0].replica.flip(1, 5)
        cluster[0].scan()
        cluster[1].serve()
        cluster[2].serve()
        cluster[1].stop_serving()

        result = cluster[0].reconcile(cluster[1:])

        assert whole == cluster[0].files()
        assert PeerState.UNREACHABLE is peer_of(result, "dn2").state
        assert ReconcileVerdict.PARTIAL is result.result

    def test_no_peer_at_all_judges_nothing(self, cluster: Cluster) -> None:
        """The damage stays, and no result reports success."""
        cluster[0].replica.flip(1, 5)
        cluster[0].scan()

        result = cluster[0].reconcile([])

        assert ReconcileVerdict.NO_PEER is result.result
        assert ReplicaState.UNHEALTHY is cluster[0].replica.store.replica(CONTAINER).state

    def test_an_open_replica_is_not_reconciled(self, tmp_path: Path) -> None:
        """The error names the state, and nothing happens."""
        opened = Datanode("dn1", tmp_path / "dn1")
        opened.replica.store.create_container(CONTAINER)

        refused = code_of(lambda: opened.reconcile([]))

        opened.close()
        assert Code.UNCLOSED_CONTAINER_IO.value == refused


class TestGivingUp:
    @pytest.mark.parametrize("code", [Code.DISK_OUT_OF_SPACE, Code.BUSY])
    def test_failed_write_stops_further_fetches(
        self, cluster: Cluster, code: Code, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A full disk ends the repair after the first chunk."""
        for block in (1, 2, 3, 4):
            cluster[0].replica.flip(block, 5)
        cluster[0].scan()
        cluster[1].serve()

        def full(*_: object, **__: object) -> None:
            raise UnavailableError(code, "no room")

        monkeypatch.setattr(ReplicaRepair, "install_chunk", full)
        reconciler = cluster[0].reconciler(limits=RepairLimits(fetch_count_max=1))
        with dialled(cluster[1:2]) as peers:
            results = [reconciler.reconcile(CONTAINER, peers) for _ in range(3)]

        assert [ReconcileVerdict.PARTIAL] * 3 == [result.result for result in results]
        assert all(result.fetched_bytes <= 2 * CHUNK_BYTES for result in results)

    def test_an_unhealthy_replica_without_peers_is_not_read_again(self, cluster: Cluster) -> None:
        """A scan of a full container is not repeated for nothing."""
        cluster[0].replica.flip(1, 5)
        cluster[0].scan()
        scanned_at_ms = cluster[0].replica.store.replica(CONTAINER).data_scan_at_ms
        generation = cluster[0].replica.store.generation(CONTAINER)

        cluster[0].reconcile([])

        assert generation == cluster[0].replica.store.generation(CONTAINER)
        assert scanned_at_ms == cluster[0].replica.store.replica(CONTAINER).data_scan_at_ms


class TestStopping:
    def test_an_interrupted_reconcile_goes_on_where_it_ended(self, cluster: Cluster) -> None:
        """Written chunks are not fetched again."""
        whole = cluster[1].files()
        for block in (1, 2, 3, 4):
            cluster[0].replica.flip(block, 5)
        cluster[0].scan()
        cluster[1].serve()

        def enough() -> bool:
            files = cluster[0].files()
            return sum(files[name] == whole[name] for name in whole) >= 2

        first = cluster[0].reconcile(cluster[1:2], stop=enough)
        between = sum(cluster[0].files()[name] == whole[name] for name in whole)
        second = cluster[0].reconcile(cluster[1:2])

        assert (ReconcileVerdict.INTERRUPTED, 2) == (first.result, between)
        assert ReconcileVerdict.CONVERGED is second.result
        assert whole == cluster[0].files()
        assert 2 * CHUNK_BYTES == second.fetched_bytes
        counts = [chunk.result for chunk in second.chunks]
        assert 2 == counts.count(ChunkResult.SALVAGED) == counts.count(ChunkResult.REPAIRED)

    def test_changes_of_an_interrupted_reconcile_are_reported(self, cluster: Cluster) -> None:
        """No scan follows it, so the tree known to the control plane is out of date."""
        store = cluster[0].replica.store
        remove_blocks(cluster[1].replica.store, CONTAINER, [BlockId(1), BlockId(2)])
        cluster[1].serve()
        told: list[int] = []
        store.on_change = lambda _: told.append(len(store.view(CONTAINER).tombstones()))

        result = cluster[0].reconcile(
            cluster[1:2],
            deletes=ConfirmedDeletes(frozenset({BlockId(1), BlockId(2)})),
            stop=lambda: bool(store.view(CONTAINER).tombstones()),
        )

        assert ReconcileVerdict.INTERRUPTED is result.result
        assert [1] == told

    def test_a_container_deleted_meanwhile_ends_it(self, cluster: Cluster) -> None:
        """A delete gets its turn between two chunks, and reconcile ends with the reason."""
        for block in (1, 2, 3, 4):
            cluster[0].replica.flip(block, 5)
        cluster[0].scan()
        cluster[1].serve()
        asked: list[int] = []

        def delete_soon() -> bool:
            asked.append(1)
            if len(asked) == 8:
                with cluster[0].replica.leases.hold(CONTAINER):
                    cluster[0].replica.store.delete_container(CONTAINER, force=True)
            return False

        refused = code_of(lambda: cluster[0].reconcile(cluster[1:2], stop=delete_soon))

        assert Code.CONTAINER_NOT_FOUND.value == refused

    def test_a_container_deleted_meanwhile_is_not_fetched_to_its_end(self, tmp_path: Path) -> None:
        """Only calls that were under way finish after the delete."""
        mine, peer = Datanode("dn1", tmp_path / "dn1"), Datanode("dn2", tmp_path / "dn2")
        for datanode in (mine, peer):
            datanode.replica.create(blocks=40)
        for block in range(1, 41):
            mine.replica.flip(block, 5)
        mine.scan()
        peer.serve(CountingReads)

        deleted_after: list[int] = []

        def delete_soon() -> bool:
            if peer.reads and not deleted_after:
                deleted_after.append(len(peer.reads))
                with mine.replica.leases.hold(CONTAINER):
                    mine.replica.store.delete_container(CONTAINER, force=True)
            return False

        limits = RepairLimits(fetch_count_max=1)
        with dialled([peer]) as peers:
            reconciler = mine.reconciler(limits=limits)
            refused = code_of(lambda: reconciler.reconcile(CONTAINER, peers, stop=delete_soon))
        read_count = len(peer.reads)
        mine.close()
        peer.close()

        assert Code.CONTAINER_NOT_FOUND.value == refused
        assert read_count <= deleted_after[0] + 10  # of 40: one call of ten chunks


class TestCommitIds:
    @pytest.fixture
    def behind(self, tmp_path: Path) -> Iterator[tuple[Datanode, Datanode]]:
        """A replica that missed the last commits, and one that has them."""
        late, ahead = Datanode("dn1", tmp_path / "dn1"), Datanode("dn2", tmp_path / "dn2")
        for datanode in (late, ahead):
            store = datanode.replica.store
            store.create_container(CONTAINER)
            datanode.replica.put(1, CHUNK_BYTES)
        ahead.replica.put(2, CHUNK_BYTES, CHUNK_BYTES)
        late.replica.store.close_container(CONTAINER, bcsid=2, force=False)
        ahead.replica.store.close_container(CONTAINER, bcsid=2, force=False)
        yield late, ahead
        late.close()
        ahead.close()

    def test_a_replica_left_behind_is_caught_up(self, behind: tuple[Datanode, Datanode]) -> None:
        """With all that the peer has, it may claim what the peer claims."""
        late, ahead = behind
        ahead.serve()
        assert ReplicaState.QUASI_CLOSED is late.replica.store.replica(CONTAINER).state

        result = late.reconcile([ahead])

        facts = late.replica.store.replica(CONTAINER)
        assert ReconcileVerdict.CONVERGED is result.result, result
        assert (2, 2) == (facts.bcsid, late.replica.store.view(CONTAINER).block(BlockId(2)).bcsid)
        assert ahead.files() == late.files()

    def test_a_closed_replica_takes_the_id_of_a_commit_that_was_deleted_since(
        self, behind: tuple[Datanode, Datanode]
    ) -> None:
        """The replica was closed before that commit, and lacks only its id."""
        late, ahead = behind
        late.replica.store.close_container(CONTAINER, bcsid=1, force=False)
        for datanode in behind:
            remove_blocks(datanode.replica.store, CONTAINER, [BlockId(2)])
        ahead.serve()
        late.reconcile(
            [ahead], deletes=ConfirmedDeletes(frozenset({BlockId(2)}))
        )  # their tombstones
        before = late.replica.store.replica(CONTAINER)

        result = late.reconcile([ahead])

        after = late.replica.store.replica(CONTAINER)
        assert ReconcileVerdict.CONVERGED is result.result, result
        assert [(ReplicaState.CLOSED, 1), (ReplicaState.CLOSED, 2)] == [
            (facts.state, facts.bcsid) for facts in (before, after)
        ]

    def test_no_commit_id_is_taken_over_a_hole(self, behind: tuple[Datanode, Datanode]) -> None:
        """The peer's damaged chunk is missing here, so neither block nor container takes the id."""
        late, ahead = behind
        ahead.replica.flip(2, CHUNK_BYTES + 5)
        ahead.scan()
        ahead.serve()

        result = late.reconcile([ahead])

        block = late.replica.store.view(CONTAINER).block(BlockId(2))
        assert ReconcileVerdict.PARTIAL is result.result
        assert (1, 0) == (len(block.chunks), block.bcsid)
        assert 1 == late.replica.store.replica(CONTAINER).bcsid

    def test_an_unhealthy_lender_lends_no_container_claim(
        self, behind: tuple[Datanode, Datanode]
    ) -> None:
        """A peer that lost a block may not know what it lost."""
        late, ahead = behind
        ahead.replica.flip(1, 5)
        ahead.scan()
        ahead.serve()

        late.reconcile([ahead])

        assert 2 == late.replica.store.view(CONTAINER).block(BlockId(2)).bcsid
        assert 1 == late.replica.store.replica(CONTAINER).bcsid

    def test_a_block_that_failed_holds_back_the_container(
        self, behind: tuple[Datanode, Datanode]
    ) -> None:
        """A container claims all blocks up to its commit id: one that is missing forbids it."""
        late, ahead = behind
        late.replica.store.delete_container(CONTAINER, force=True)
        ahead.replica.store.delete_container(CONTAINER, force=True)
        for datanode, blocks in ((late, 1), (ahead, 3)):
            datanode.replica.store.create_container(CONTAINER)
            for block in range(1, blocks + 1):
                datanode.replica.put(block, CHUNK_BYTES)
            datanode.replica.store.close_container(CONTAINER, bcsid=3, force=False)
        ahead.replica.flip(2, 5)  # nobody has noticed yet: its tree says that all is well
        ahead.serve()

        result = late.reconcile([ahead])

        assert ReconcileVerdict.PARTIAL is result.result
        assert 3 == late.replica.store.view(CONTAINER).block(BlockId(3)).bcsid
        assert 1 == late.replica.store.replica(CONTAINER).bcsid

    def test_client_metadata_comes_with_a_block(self, tmp_path: Path) -> None:
        """A block that was missing whole has the client's key again; one without chunks too."""
        mine, peer = Datanode("dn1", tmp_path / "dn1"), Datanode("dn2", tmp_path / "dn2")
        for datanode in (mine, peer):
            datanode.replica.store.create_container(CONTAINER)
        data = noise(1_000, 1)
        sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, data)
        chunk = ChunkInfo(0, 1_000, ChecksumType.CRC32C, WINDOW_BYTES, sums)
        full = BlockData(BlockId(1), Bcsid(1), (chunk,), (("key", "a/b"),))
        empty = replace(full, block_id=BlockId(2), chunks=(), metadata=(("key", "empty"),))
        peer.replica.store.writer(CONTAINER).write_chunk(BlockId(1), chunk, data, commit=full)
        peer.replica.store.writer(CONTAINER).put_block(empty)
        for datanode in (mine, peer):
            datanode.replica.store.close_container(CONTAINER, bcsid=0, force=True)
        peer.serve()

        result = mine.reconcile([peer])

        blocks = mine.replica.store.view(CONTAINER).blocks()
        mine.close()
        peer.close()
        assert ReconcileVerdict.CONVERGED is result.result, result
        assert [full, empty] == blocks
