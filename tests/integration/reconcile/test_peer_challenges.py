"""Peers that are asked at random to prove a chunk: honest ones, stale ones, forgers."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.config.options import ScanConfig
from agent.reconcile.peer_challenges import ChallengeWorker
from agent.scan.scan_control import BackgroundScans
from agent.scan.scan_manager import ScanManager
from agent.services.admin_handlers import AdminHandlers
from agent.services.limits import DatanodeServerLimits
from agent.services.server import build_server
from agent.store.operations.reading import LocalReplicaView
from merkle.replica import BlockId, ContainerId
from suture.errors import Code, UnavailableError
from suture.runtime.loop import RetryAfter
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.clock import FakeClock
from tests.support.heard import logged
from tests.support.storage.datanodes import Datanode, dialled
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER

INTERVAL_S = 60.0
ASKED = 40  # often enough that each of six chunks is drawn


class Two:
    """Two datanodes with the same container; the first asks the second."""

    def __init__(self, root: Path) -> None:
        self.mine, self.other = (Datanode(name, root / name) for name in ("dn1", "dn2"))
        for one in (self.mine, self.other):
            one.replica.create()
            one.serve()
        self.clock = FakeClock()
        self.results: Counter[str] = Counter()
        self.scans: list[str] = []

    def info(self, container_id: ContainerId) -> scm_pb2.ContainerInfo:
        """Say who has it, as the control plane does."""
        return scm_pb2.ContainerInfo(
            container_id=container_id,
            replicas=[
                scm_pb2.ContainerInfoReplica(
                    datanode=container_pb2.DatanodeEndpoint(
                        datanode_id=one.datanode_id, address=one.address
                    ),
                    replica=container_pb2.ReplicaReport(state=container_pb2.CLOSED),
                )
                for one in (self.mine, self.other)
            ],
        )

    def worker(
        self,
        peer: Peer,
        interval_s: float = INTERVAL_S,
        info: Callable[[ContainerId], scm_pb2.ContainerInfo] | None = None,
    ) -> ChallengeWorker:
        """Return what asks."""
        return ChallengeWorker(
            self.mine.replica.store,
            "dn1",
            interval_s,
            info=info or self.info,
            dial=lambda _: peer,
            request_scan=lambda _, why: self.scans.append(why),
            count=lambda result: self.results.update([result]),
            clock=self.clock,
        )

    def ask(self, count: int = ASKED) -> None:
        """Ask so often."""
        with dialled([self.other]) as peers:
            worker = self.worker(peers["dn2"])
            for _ in range(count):
                self.clock.advance_s(2 * INTERVAL_S)
                worker.step()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    """Two datanodes that serve."""
    made = Two(tmp_path)
    yield made
    made.mine.close()
    made.other.close()


def test_honest_peer_proves_every_challenge(two: Two) -> None:
    """No finding is reported, and no scan is requested."""
    two.ask()

    assert {"proven": ASKED} == two.results
    assert [] == two.scans


def test_a_medium_that_lost_something_is_found(two: Two) -> None:
    """Its tree is unchanged, and no scan has read the chunk since."""
    before = two.other.replica.store.view(CONTAINER).tree().root
    two.other.replica.flip(2, 7)

    with logged() as said:
        two.ask()

    assert two.results["failed"] > 0
    assert two.results["failed"] + two.results["proven"] == ASKED
    told = [one for one in said if one["event"] == "proof_failed"]
    assert {("dn2", 2, 0)} == {(one["peer"], one["block_id"], one["offset"]) for one in told}
    assert before == two.other.replica.store.view(CONTAINER).tree().root


def test_a_forged_row_that_verifies_is_found(two: Two) -> None:
    """
    Rows and bytes of the peer fit each other: only bytes that are right fit ours.
    """
    two.other.stop_serving()
    two.other.replica.rewrite(1)
    two.other.serve()

    two.ask()

    assert two.results["failed"] > 0


def test_an_answer_that_was_right_once_is_not_right_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A peer that keeps answers and has lost the bytes: each question has a nonce of its own.
    """
    kept: dict[tuple[int, int], object] = {}
    real = Peer.prove_chunks

    def stale(
        self: Peer, owner: ContainerId, asked: Sequence[tuple[BlockId, int, bytes]]
    ) -> list[object]:
        [(block_id, offset, _)], [fresh] = asked, real(self, owner, asked)
        return [kept.setdefault((block_id, offset), fresh)]

    monkeypatch.setattr(Peer, "prove_chunks", stale)
    two.ask()

    assert len(kept) == two.results["proven"]
    assert ASKED - len(kept) == two.results["failed"]


def test_challenge_that_fails_on_own_damage_requests_an_own_scan(two: Two) -> None:
    """The peer is neither blamed nor asked."""
    for block in (1, 2, 3):
        two.mine.replica.flip(block, 3)
        two.mine.replica.flip(block, CHUNK_BYTES + 3)

    two.ask(3)

    assert {"own": 3} == two.results
    assert 3 == len(two.scans)


def test_challenge_that_cannot_read_its_own_chunk_requests_a_scan(two: Two) -> None:
    """A file that ends early is the fault of this datanode, too."""
    for block in (1, 2, 3):
        os.truncate(two.mine.replica.file(block), 0)

    two.ask(3)

    assert {"own": 3} == two.results
    assert 3 == len(two.scans)


def test_container_deleted_during_a_challenge_blames_nobody(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletes go on during challenges. Neither replica is doubted or scanned for it."""
    store = two.mine.replica.store
    real = LocalReplicaView.read

    def deleted(self: LocalReplicaView, *asked: Any, past_cache: bool = False) -> bytes:
        if past_cache and CONTAINER in store.replica_ids():
            store.delete_container(CONTAINER, force=True)
        return real(self, *asked, past_cache=past_cache)

    monkeypatch.setattr(LocalReplicaView, "read", deleted)
    two.ask(3)

    assert {} == two.results
    assert [] == two.scans


def test_challenged_peer_scans_its_own_damaged_replica(two: Two) -> None:
    """A chunk that does not fit its own row is noticed by the challenged peer as well."""
    for block in (1, 2, 3):
        two.other.replica.flip(block, 3)

    two.ask()

    assert two.other.doubts
    assert {CONTAINER} == set(two.other.doubts)


def test_peer_that_does_not_answer_a_challenge_is_not_blamed(two: Two) -> None:
    """The peer may be down, or run an earlier version."""
    with dialled([two.other]) as peers:
        worker = two.worker(peers["dn2"])
        two.other.stop_serving()
        two.clock.advance_s(2 * INTERVAL_S)
        worker.step()

    assert {"unanswered": 1} == two.results


def test_challenges_keep_to_their_interval(two: Two) -> None:
    """At least half the interval lies between two challenges. With 0, or without a control plane
    to name the peers, no challenge is sent.
    """

    def silent(_: ContainerId) -> scm_pb2.ContainerInfo:
        raise UnavailableError(Code.UNAVAILABLE, "nobody answers")

    with dialled([two.other]) as peers:
        worker = two.worker(peers["dn2"])
        for _ in range(600):
            two.clock.advance_s(1.0)
            worker.step()
        assert 600 / (1.5 * INTERVAL_S) - 1 <= two.results.total() <= 600 / (0.5 * INTERVAL_S)
        two.results.clear()
        for other in (two.worker(peers["dn2"], 0.0), two.worker(peers["dn2"], info=silent)):
            two.clock.advance_s(2 * INTERVAL_S)
            assert isinstance(other.step(), RetryAfter)

    assert not two.results


def test_challenge_status_counts_results_and_has_the_last_time(two: Two) -> None:
    """Each result is counted in the status of the datanode. Before the first challenge there is
    no time.
    """
    with dialled([two.other]) as peers:
        worker = two.worker(peers["dn2"])
        before = worker.status()
        two.clock.advance_s(2 * INTERVAL_S)
        worker.step()
        proven_at_ms = two.clock.now_ms()
        proven = worker.status()
        two.other.stop_serving()
        two.clock.advance_s(2 * INTERVAL_S)
        worker.step()
        unanswered = worker.status()

    assert datanode_pb2.Challenges(interval_ms=60_000) == before
    assert (1, 0, proven_at_ms) == (
        proven.proven_count,
        proven.unanswered_count,
        proven.asked_at_ms,
    )
    assert (1, 1, two.clock.now_ms()) == (
        unanswered.proven_count,
        unanswered.unanswered_count,
        unanswered.asked_at_ms,
    )


def test_results_are_told_to_operators(two: Two) -> None:
    """Each result is counted, with the time of the last challenge."""
    scrub = ScanManager(two.mine.replica.tools, ScanConfig(enabled=False), threading.Event())  # type: ignore[call-arg]
    damage = (
        (two.other.replica, "failed", 3),
        (two.mine.replica, "own", 4),
    )
    with dialled([two.other]) as peers, ThreadPoolExecutor(2) as executor:
        worker = two.worker(peers["dn2"])
        built = build_server(
            [AdminHandlers(datanode_pb2.StatusResponse, BackgroundScans(scrub, worker))],
            "127.0.0.1:0",
            executor,
            datanode_id="dn1",
            limits=DatanodeServerLimits(),
        )
        built.server.start()

        def ask(count: int) -> None:
            for _ in range(count):
                two.clock.advance_s(2 * INTERVAL_S)
                worker.step()

        ask(2)
        for replica, _result, count in damage:
            for block in (1, 2, 3):
                replica.flip(block, 3)
                replica.flip(block, CHUNK_BYTES + 3)
            ask(count)
        two.other.stop_serving()
        for block in (1, 2, 3):  # what is right again
            two.mine.replica.flip(block, 3)
            two.mine.replica.flip(block, CHUNK_BYTES + 3)
        ask(1)
        with Peer(f"127.0.0.1:{built.port}") as peer:
            told = peer.stub.ScrubStatus(datanode_pb2.ScrubStatusRequest()).challenges
        built.server.stop(0).wait()

    assert told == datanode_pb2.Challenges(
        interval_ms=int(INTERVAL_S * 1000),
        asked_at_ms=two.clock.now_ms(),
        proven_count=2,
        failed_count=3,
        unanswered_count=1,
        own_count=4,
    )
