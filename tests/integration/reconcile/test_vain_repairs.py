"""A repair that changes nothing is not done again and again; one that could not be done is."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import Code, Unavailable
from agent.plan.reconcile_outcome import Result
from agent.rpc.calls.peer import Peer
from merkle.tree_codec import decode_tree
from tests.support.faults.bad_peers import Liar
from tests.support.faults.flips import failing_memory
from tests.support.storage.datanodes import Datanode, dialled
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


class TestVainRepairs:
    def test_the_same_vain_repair_is_not_done_a_third_time(self, cluster: Cluster) -> None:
        """Twice without effect is enough: then nothing is fetched, and the result says so."""
        cluster[0].replica.flip(1, 5)
        cluster[0].scan()
        cluster[1].serve(Liar)
        reconciler = cluster[0].reconciler()

        with dialled(cluster[1:2]) as peers:
            results = [reconciler.reconcile(CONTAINER, peers) for _ in range(4)]

        words = [result.result for result in results]
        assert [
            Result.PARTIAL,
            Result.PARTIAL,
            Result.NON_CONVERGENT,
            Result.NON_CONVERGENT,
        ] == words
        assert (True, 0) == (results[1].fetched_bytes > 0, results[2].fetched_bytes)
        assert "in vain" in results[2].chunks[0].message
        assert {"my tree, NON_CONVERGENT", "tree of dn2, NON_CONVERGENT"} == trees_kept(cluster[0])

    @pytest.mark.parametrize("what", ["tail", "row"])
    def test_what_a_silent_peer_did_not_prove_was_no_vain_repair(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        """It is down for a while, or overloaded: nothing was learned, and nothing written."""
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
            raise Unavailable(Code.UNAVAILABLE, "it does not answer")

        with dialled(cluster[1:2]) as peers:
            with monkeypatch.context() as patch:
                patch.setattr(Peer, "prove_chunk", silent)
                before = [reconciler.reconcile(CONTAINER, peers).result for _ in range(4)]
            after = reconciler.reconcile(CONTAINER, peers).result

        assert [Result.PARTIAL] * 4 == before
        assert Result.CONVERGED is after

    def test_what_our_own_memory_made_of_a_chunk_was_no_vain_repair(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A proof of other bytes than our row's says nothing of the peer: it is not asked for."""
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
        assert [Result.PARTIAL] * 4 == [one.result for one in before]
        assert all("was read here" in one.chunks[0].message for one in before)
        assert Result.CONVERGED is after
        assert cluster[1].files() == cluster[0].files()

    def test_a_changed_peer_is_tried_again(self, cluster: Cluster) -> None:
        """Another peer is another divergence."""
        cluster[0].replica.flip(1, 5)
        cluster[0].scan()
        cluster[1].serve(Liar)
        cluster[2].serve()
        reconciler = cluster[0].reconciler()

        with dialled(cluster[1:]) as peers:
            liar = {"dn2": peers["dn2"]}
            for _ in range(3):
                reconciler.reconcile(CONTAINER, liar)
            result = reconciler.reconcile(CONTAINER, peers)

        assert 1 == sum(one.chunk_count for one in result.peers if one.peer_id == "dn3")
        assert cluster[2].files() == cluster[0].files()

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

        assert [Result.CONVERGED] * 4 == words
