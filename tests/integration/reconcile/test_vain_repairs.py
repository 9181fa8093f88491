"""A repair that changes nothing is not done again and again; one that could not be done is."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from agent.plan.reconcile_outcome import ReadBack, ReconcileVerdict
from agent.reconcile.reconciler import Reconciler
from merkle.replica import ContainerId
from merkle.tree_codec import decode_tree
from scanner.resume import Doubt
from suture.errors import Code, UnavailableError
from suture.wire.clients.peer import Peer
from tests.support.faults.bad_peers import Garbler
from tests.support.faults.flips import failing_memory
from tests.support.storage.datanodes import CountingReads, Datanode, dialled
from tests.support.storage.stored_replica import CONTAINER

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


def trees_kept(datanode: Datanode) -> set[str]:
    """Return what the quarantine says of trees in it, each of which can be decoded."""
    volume = datanode.replica.store.volumes()[0].path
    [quarantine] = volume.glob("hdds/*/quarantine")
    told = []
    for path in quarantine.glob("*.bytes"):
        note = json.loads(path.with_suffix(".json").read_text())
        if note["block_id"] == 0:
            decode_tree(path.read_bytes(), CONTAINER)
            told.append(note["why"])
    assert len(told) == len(set(told)), "kept twice"
    return set(told)


def losing_writes(datanode: Datanode) -> Reconciler:
    """Return a reconciler of a datanode whose disk has the old bytes again after every repair."""

    def prove(_container_id: ContainerId, _changed: Collection[Doubt]) -> ReadBack:
        datanode.replica.flip(1, 5)
        datanode.scan()
        return ReadBack.WHOLE

    datanode.replica.flip(1, 5)
    datanode.scan()
    return datanode.reconciler(prove=prove)


class Recovering(Garbler):
    """Serves wrong bytes until `is_well`, as a disk behind a loose cable."""

    is_well = False

    def ReadChunk(self, request):  # type: ignore[no-untyped-def]
        """Serve a chunk."""
        if Recovering.is_well:
            yield from CountingReads.ReadChunk(self, request)
        else:
            yield from super().ReadChunk(request)


class TestVainRepairs:
    def test_the_same_vain_repair_is_not_done_a_third_time(self, cluster: Cluster) -> None:
        """After two attempts without effect nothing is fetched, and the result reports it."""
        reconciler = losing_writes(cluster[0])
        cluster[1].serve()

        with dialled(cluster[1:2]) as peers:
            results = [reconciler.reconcile(CONTAINER, peers) for _ in range(4)]

        words = [result.result for result in results]
        assert [
            ReconcileVerdict.PARTIAL,
            ReconcileVerdict.PARTIAL,
            ReconcileVerdict.NON_CONVERGENT,
            ReconcileVerdict.NON_CONVERGENT,
        ] == words
        assert (True, 0) == (results[1].fetched_bytes > 0, results[2].fetched_bytes)
        assert "in vain" in results[2].chunks[0].message
        assert {"my tree, NON_CONVERGENT", "tree of dn2, NON_CONVERGENT"} == trees_kept(cluster[0])

    def test_order_of_an_operator_is_done_whatever_was_counted(self, cluster: Cluster) -> None:
        """The operator may have changed the disk, the cable or the controller."""
        reconciler = losing_writes(cluster[0])
        cluster[1].serve()

        with dialled(cluster[1:2]) as peers:
            for _ in range(3):
                counted = reconciler.reconcile(CONTAINER, peers).result
            asked_for = reconciler.reconcile(CONTAINER, peers, is_asked_for=True)

        assert (ReconcileVerdict.NON_CONVERGENT, ReconcileVerdict.PARTIAL) == (
            counted,
            asked_for.result,
        )
        assert asked_for.fetched_bytes > 0

    def test_source_that_read_badly_is_asked_again_when_it_recovers(self, cluster: Cluster) -> None:
        """Nothing was written, so nothing was tried that could have failed here."""
        cluster[0].replica.flip(1, 5)
        cluster[0].scan()
        cluster[1].serve(Recovering)
        reconciler = cluster[0].reconciler()

        with dialled(cluster[1:2]) as peers:
            Recovering.is_well = False
            before = [reconciler.reconcile(CONTAINER, peers).result for _ in range(4)]
            Recovering.is_well = True
            after = reconciler.reconcile(CONTAINER, peers).result

        assert ([ReconcileVerdict.PARTIAL] * 4, ReconcileVerdict.CONVERGED) == (before, after)
        assert cluster[1].files() == cluster[0].files()

    @pytest.mark.parametrize("what", ["tail", "row"])
    def test_repair_unproven_by_a_silent_peer_is_tried_again(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        """The peer is down or overloaded for a while, so nothing was written and nothing is
        known about its bytes.
        """
        if what == "tail":
            with cluster[0].replica.file(1).open("ab") as file:
                file.write(b"tail")
        else:
            cluster[0].replica.flip(1, 5)
            cluster[0].replica.delete_row(1)
        cluster[0].scan()
        cluster[1].serve()
        reconciler = cluster[0].reconciler()

        def silent(*_: object) -> bytes:
            raise UnavailableError(Code.UNAVAILABLE, "it does not answer")

        with dialled(cluster[1:2]) as peers:
            with monkeypatch.context() as patch:
                patch.setattr(Peer, "prove_chunks", silent)
                before = [reconciler.reconcile(CONTAINER, peers).result for _ in range(4)]
            after = reconciler.reconcile(CONTAINER, peers).result

        assert [ReconcileVerdict.PARTIAL] * 4 == before
        assert ReconcileVerdict.CONVERGED is after

    def test_repair_spoiled_by_own_memory_is_tried_again(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A proof of bytes other than those of the own row is useless, so the peer is not asked
        for one.
        """
        with cluster[0].replica.file(1).open("ab") as file:
            file.write(b"tail")
        cluster[0].scan()
        cluster[1].serve()
        reconciler = cluster[0].reconciler()

        with dialled(cluster[1:2]) as peers:
            with monkeypatch.context() as patch:
                reads = failing_memory(patch)
                before = [reconciler.reconcile(CONTAINER, peers) for _ in range(4)]
            after = reconciler.reconcile(CONTAINER, peers).result

        assert len(reads) >= 4
        assert [ReconcileVerdict.PARTIAL] * 4 == [one.result for one in before]
        assert all("was read here" in one.chunks[0].message for one in before)
        assert ReconcileVerdict.CONVERGED is after
        assert cluster[1].files() == cluster[0].files()

    def test_a_changed_peer_is_tried_again(self, cluster: Cluster) -> None:
        """Another peer is another divergence."""
        reconciler = losing_writes(cluster[0])
        cluster[1].serve()
        cluster[2].serve()

        with dialled(cluster[1:]) as peers:
            one = {"dn2": peers["dn2"]}
            alone = [reconciler.reconcile(CONTAINER, one).result for _ in range(3)]
            result = reconciler.reconcile(CONTAINER, peers)

        assert ReconcileVerdict.NON_CONVERGENT is alone[-1]
        assert ReconcileVerdict.PARTIAL is result.result
        assert 1 == sum(peer.chunk_count for peer in result.peers)

    def test_damage_that_returns_is_repaired_as_often_as_it_comes(self, cluster: Cluster) -> None:
        """A repair that worked is never counted as vain."""
        cluster[1].serve()
        reconciler = cluster[0].reconciler()
        words = []

        with dialled(cluster[1:2]) as peers:
            for _ in range(4):
                cluster[0].replica.flip(1, 5)
                cluster[0].scan()
                words.append(reconciler.reconcile(CONTAINER, peers).result)

        assert [ReconcileVerdict.CONVERGED] * 4 == words
