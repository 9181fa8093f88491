"""Small chunks are fetched and proven together, and no less carefully than one by one."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.plan.reconcile_outcome import ReconcileResult, ReconcileVerdict
from agent.reconcile import repair_executor
from agent.reconcile.repair_executor import RepairLimits
from agent.services.read_handlers import ReadHandlers
from agent.store.operations.repair import ReplicaRepair
from merkle.checksum import window_checksums
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from suture.errors import Code, UnavailableError
from suture.wire.clients.peer import Peer
from tests.support.storage.datanodes import LIMITS, Datanode, dialled
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER, noise

Cluster = list[Datanode]
Keys = list[tuple[BlockId, int]]


DESCRIBING = ("block", "named_blocks")


class Counting:
    """Notes with how many chunks each kind of call was made, and makes it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: dict[str, list[int]] = {}
        for name in ("read_chunk", "read_chunks", "prove_chunks", *DESCRIBING):
            self._count(monkeypatch, name)

    def _count(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(Peer, name)
        calls = self.counts.setdefault(name, [])

        def counting(peer: Peer, container_id: ContainerId, asked: Keys, *rest: object) -> object:
            calls.append(len(asked) if name.endswith("s") else 1)
            return real(peer, container_id, asked, *rest)

        monkeypatch.setattr(Peer, name, counting)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three datanodes with the same container of 20 blocks; of each block the first one has a chunk
    damaged."""
    datanodes = [Datanode(f"dn{number}", tmp_path / f"dn{number}") for number in (1, 2, 3)]
    for datanode in datanodes:
        datanode.replica.create(blocks=20)
    for block in range(1, 21):
        datanodes[0].replica.flip(block, 5 if block % 2 else CHUNK_BYTES + 5)
    datanodes[0].scan()
    yield datanodes
    for datanode in datanodes:
        datanode.close()


def pair(folder: Path, chunk_sizes_bytes: Sequence[int]) -> tuple[Datanode, Datanode]:
    """Return two datanodes with equal closed replicas of one block."""
    first, second = (Datanode(name, folder / name) for name in ("dn1", "dn2"))
    for datanode in (first, second):
        datanode.replica.store.create_container(CONTAINER)
        datanode.replica.put(1, *chunk_sizes_bytes)
        datanode.replica.store.close_container(CONTAINER, bcsid=0, force=True)
    return first, second


def served_by(*datanodes: Datanode) -> None:
    """Let them serve as agents do."""
    for datanode in datanodes:
        datanode.serve(lambda one: ReadHandlers(one.replica.store, limits=LIMITS))


def one_call_at_a_time(mine: Datanode, others: Cluster) -> ReconcileResult:
    """Reconcile without any call beside another one."""
    reconciler = mine.reconciler(limits=RepairLimits(fetch_count_max=1))
    with dialled(others) as peers:
        return reconciler.reconcile(CONTAINER, peers)


def test_many_chunks_take_few_calls(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Twenty of 100,000 bytes from two peers: each peer gets a message for ten.
    """
    served_by(*cluster[1:])
    calls = Counting(monkeypatch)

    result = cluster[0].reconcile(cluster[1:])

    assert (ReconcileVerdict.CONVERGED, 20) == (result.result, result.chunk_count)
    assert cluster[1].files() == cluster[0].files()
    assert [10, 10] == calls.counts["read_chunks"] == calls.counts["prove_chunks"]
    assert [] == calls.counts["read_chunk"] == calls.counts["block"]
    assert 20 == sum(calls.counts["named_blocks"])
    assert len(calls.counts["named_blocks"]) <= 2
    assert [10, 10] == [peer.chunk_count for peer in result.peers]
    damaged_bytes = sum(CHUNK_BYTES + (0 if block % 2 else block) for block in range(1, 21))
    assert damaged_bytes == result.fetched_bytes


def test_four_chunks_of_a_mebibyte_share_their_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of nine is fetched and proven alone."""
    mine, whole = pair(tmp_path, [1024**2] * 9)
    for number in range(9):
        mine.replica.flip(1, number * 1024**2 + 5)
    mine.scan()
    served_by(whole)
    calls = Counting(monkeypatch)

    result = mine.reconcile([whole])
    files = whole.files(), mine.files()
    for datanode in (mine, whole):
        datanode.close()

    assert (ReconcileVerdict.CONVERGED, 9) == (result.result, result.chunk_count)
    assert files[0] == files[1]
    assert ([4, 4], [1]) == (calls.counts["read_chunks"], calls.counts["read_chunk"])
    assert [1, 4, 4] == sorted(calls.counts["prove_chunks"])


def test_a_message_has_room_for_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mebibyte of 100-byte chunks would be more chunks than a datanode accepts in one call."""
    mine, whole = pair(tmp_path, [100] * 300)
    mine.replica.overwrite(1, 0, bytes(30_000))
    mine.scan()
    served_by(whole)
    calls = Counting(monkeypatch)

    result = mine.reconcile([whole])
    files = whole.files(), mine.files()
    for datanode in (mine, whole):
        datanode.close()

    assert (ReconcileVerdict.CONVERGED, 300) == (result.result, result.chunk_count)
    assert files[0] == files[1]
    assert [44, 64, 64, 64, 64] == sorted(calls.counts["read_chunks"])


def test_a_chunk_by_itself_is_asked_for_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nothing is gained by another kind of call.
    """
    for block in range(2, 21):
        cluster[0].replica.flip(block, 5 if block % 2 else CHUNK_BYTES + 5)  # and back again
    cluster[0].scan()
    served_by(*cluster[1:])
    calls = Counting(monkeypatch)

    assert ReconcileVerdict.CONVERGED is cluster[0].reconcile(cluster[1:]).result
    assert [[1], [], [1], [1], []] == list(calls.counts.values())


def test_a_chunk_that_is_not_what_the_tree_says_is_not_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk fits its checksums and its datanode proves it, because it was rewritten after
    its tree was fetched. The own row, which would show that, is lost. The fetched bytes are
    counted.
    """
    cluster[0].replica.delete_row(1)
    cluster[0].scan()
    served_by(*cluster[1:])
    real_read, real_one, real_prove = Peer.read_chunks, Peer.read_chunk, Peer.prove_chunks
    lie = noise(CHUNK_BYTES, 4)
    came: list[int] = []

    def alone(peer: Peer, container_id: ContainerId, block_id: BlockId, *rest: object) -> object:
        chunk, data = real_one(peer, container_id, block_id, *rest)
        came.append(len(data))
        return chunk, data

    def lying(peer: Peer, container_id: ContainerId, keys: Keys) -> object:
        served = real_read(peer, container_id, keys)
        for key in {(BlockId(1), 0)} & set(served):
            chunk = served[key][0]
            kind, window_bytes = chunk.checksum_type, chunk.bytes_per_checksum
            sums = window_checksums(kind, window_bytes, lie)
            served[key] = chunk._replace(window_checksums=sums), lie
        came.extend(len(data) for _, data in served.values())
        return served

    def proving(
        peer: Peer, container_id: ContainerId, asked: list[tuple[BlockId, int, bytes]]
    ) -> list[bytes]:
        answers = real_prove(peer, container_id, asked)
        for at, (block_id, offset, nonce) in enumerate(asked):
            if (block_id, offset) == (1, 0) and len(asked) > 1:
                answers[at] = hashlib.blake2b(lie, key=nonce, digest_size=16).digest()
        return answers

    monkeypatch.setattr(Peer, "read_chunks", lying)
    monkeypatch.setattr(Peer, "read_chunk", alone)
    monkeypatch.setattr(Peer, "prove_chunks", proving)

    result = cluster[0].reconcile(cluster[1:])

    assert (ReconcileVerdict.CONVERGED, sum(came)) == (result.result, result.fetched_bytes)
    assert cluster[1].files() == cluster[0].files()


def test_bytes_here_are_not_taken_for_a_version_that_the_tree_does_not_have(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lender describes a chunk just as it is here, without a row, and its own tree
    disagrees.
    """
    old = noise(CHUNK_BYTES, 5)
    cluster[0].replica.overwrite(1, 0, old)
    cluster[0].replica.delete_row(1)
    cluster[0].scan()
    served_by(*cluster[1:])
    real = Peer.named_blocks

    def describing(
        peer: Peer, container_id: ContainerId, block_ids: list[BlockId]
    ) -> dict[BlockId, BlockData]:
        blocks = real(peer, container_id, block_ids)
        if BlockId(1) in blocks:
            first, *rest = blocks[BlockId(1)].chunks
            sums = window_checksums(first.checksum_type, first.bytes_per_checksum, old)
            chunks = (first._replace(window_checksums=sums), *rest)
            blocks[BlockId(1)] = replace(blocks[BlockId(1)], chunks=chunks)
        return blocks

    monkeypatch.setattr(Peer, "named_blocks", describing)
    cluster[0].reconcile(cluster[1:])

    assert cluster[1].files() == cluster[0].files()


def test_chunk_that_cannot_be_read_here_is_fetched(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read of each block, to compare it with its peers, fails."""
    served_by(*cluster[1:])

    read_medium_many = ReplicaRepair.read_medium_many

    def fails(repair: ReplicaRepair, block_id: BlockId, chunks: Sequence[ChunkInfo]) -> list[bytes]:
        if block_id not in failed_for:  # to compare it; it is read again to be overwritten
            failed_for.add(block_id)
            raise UnavailableError(Code.UNAVAILABLE, "the index has no free reader")
        return read_medium_many(repair, block_id, chunks)

    failed_for: set[BlockId] = set()
    monkeypatch.setattr(ReplicaRepair, "read_medium_many", fails)
    result = cluster[0].reconcile(cluster[1:])

    assert failed_for
    assert (ReconcileVerdict.CONVERGED, 20) == (result.result, result.chunk_count)
    assert cluster[1].files() == cluster[0].files()


def test_peer_without_batch_proofs_is_asked_chunk_by_chunk(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the peer cannot prove a chunk that way either, another peer proves it, or nothing is
    written.
    """
    served_by(*cluster[1:])
    before = cluster[0].files()

    real = Peer.prove_chunks

    def unproven(peer: Peer, container_id: ContainerId, asked: list[Any]) -> object:
        alone = real(peer, container_id, asked) if len(asked) == 1 else None
        return alone or [bytes(16)] * len(asked)

    def silent(*_: object) -> bytes:
        raise UnavailableError(Code.UNAVAILABLE, "it does not answer")

    monkeypatch.setattr(Peer, "prove_chunks", unproven)
    calls = Counting(monkeypatch)
    for block in range(1, 21):  # without a row only a proof tells that these are the bytes
        cluster[0].replica.delete_row(block)
    cluster[0].scan()
    with monkeypatch.context() as patch:
        patch.setattr(Peer, "prove_chunks", silent)
        unrepaired = cluster[0].reconcile(cluster[1:])
        unchanged = cluster[0].files()
    result = cluster[0].reconcile(cluster[1:])

    assert (ReconcileVerdict.PARTIAL, before) == (unrepaired.result, unchanged)
    assert ReconcileVerdict.CONVERGED is result.result
    assert cluster[1].files() == cluster[0].files()
    assert calls.counts["prove_chunks"].count(1) >= 20


def test_silent_peer_is_not_asked_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The silent peer is asked neither for several chunks nor for one. The other peer has all
    chunks.
    """
    served_by(*cluster[1:])
    monkeypatch.setattr(repair_executor, "REPAIR_BYTES_MAX", 1024**2)  # two groups of ten
    real = Peer.read_chunks
    silent = cluster[1].address
    asked: list[int] = []

    def answering(peer: Peer, container_id: ContainerId, keys: Keys) -> object:
        if peer.address == silent:
            asked.append(len(keys))
            raise UnavailableError(Code.UNAVAILABLE, "it does not answer")
        return real(peer, container_id, keys)

    monkeypatch.setattr(Peer, "read_chunks", answering)
    calls = Counting(monkeypatch)

    result = one_call_at_a_time(cluster[0], cluster[1:])

    assert cluster[2].files() == cluster[0].files()
    assert [0, 20] == [peer.chunk_count for peer in result.peers]
    assert [5] == asked
    assert [5, 5, 10] == calls.counts["read_chunks"]
    assert 5 == len(calls.counts["read_chunk"])
