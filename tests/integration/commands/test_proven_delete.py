"""A replica is deleted when another datanode has proven to have it, and not before."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent.commands.replica_delete import KEEP_S, ReplicaDeleter
from agent.reconcile.witnesses import ReplicaProof, ReplicaProofCollector
from agent.store.operations import deleting
from merkle.replica import BlockId, ContainerId
from suture.errors import Code, RefusedError, SutureError, UnavailableError, VolumeFailed
from suture.runtime.clock import SystemClock
from suture.wire.clients.peer import Peer
from tests.support.clock import FakeClock
from tests.support.storage import datanodes
from tests.support.storage.datanodes import Datanode, dialled
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER

TIMEOUT_S = 20.0
BLOCK = BlockId(2)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Datanode, Datanode]]:
    """Two datanodes with the same closed container."""
    made = [Datanode(name, tmp_path / name) for name in ("dn1", "dn2")]
    for one in made:
        one.replica.create()
        one.serve()
    yield made[0], made[1]
    for one in made:
        one.close()


def deletes(
    mine: Datanode, *, age_max_s: float = 0.0, ordered: Sequence[BlockId] = ()
) -> ReplicaDeleter:
    """Return what deletes replicas of a datanode."""
    return ReplicaDeleter(
        store=mine.replica.store,
        leases=mine.replica.leases,
        pins=mine.pins,
        clock=SystemClock(),
        confirmed=lambda _id, asked: frozenset(asked) & frozenset(ordered),
        age_max_s=age_max_s,
    )


def delete(mine: Datanode, others: Sequence[Datanode], made: ReplicaDeleter | None = None) -> None:
    """Delete the replica of a datanode; the others are named as witnesses."""
    with dialled(others) as peers:
        (made or deletes(mine)).delete(CONTAINER, peers, force=True, timeout_s=TIMEOUT_S)


def refusal(work: Callable[[], None]) -> SutureError:
    """Return why something is not done."""
    with pytest.raises(SutureError) as caught:
        work()
    return caught.value


def has(datanode: Datanode) -> bool:
    """Whether it has its replica."""
    return CONTAINER in datanode.replica.store.replica_ids()


def told(datanode: Datanode) -> str:
    """Return what its verification log says."""
    [directory] = datanode.replica.path.glob("hdds/*/verification")
    return "".join(path.read_text() for path in sorted(directory.iterdir()))


def test_proven_replica_is_deleted_when_another_is_whole(two: tuple[Datanode, Datanode]) -> None:
    """The deleter logs the proof, and the witness has just scanned its own replica."""
    mine, other = two

    delete(mine, [other])

    assert (False, True) == (has(mine), has(other))
    lines = [line for line in told(mine).splitlines() if '"delete"' in line]
    [entry] = [json.loads(line[line.index("{") :]) for line in lines]
    assert entry["proof"].startswith("dn2 ")
    assert entry["proof"].endswith(" chunks 6")
    assert "verdict" in told(other)


@pytest.mark.parametrize("way", ["flip", "lost", "row"])
def test_replica_is_kept_when_the_other_is_damaged(
    two: tuple[Datanode, Datanode], way: str
) -> None:
    """The proof finds the damage though no scan has found it yet."""
    mine, other = two
    match way:
        case "flip":
            other.replica.flip(BLOCK, 5)
        case "lost":
            other.replica.file(BLOCK).unlink()
        case _:
            other.stop_serving()
            other.replica.rewrite(BLOCK)  # it verifies, and is not what is here
            other.serve()

    error = refusal(lambda: delete(mine, [other]))

    assert (Code.NOT_PROVEN, True) == (error.code, has(mine))
    assert "dn2: " in str(error)


def test_a_witness_that_forges_its_tree_is_found(
    two: tuple[Datanode, Datanode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The witness reads nothing and sends a correct tree, so it must also prove some of its
    bytes.
    """
    mine, other = two
    monkeypatch.setattr(datanodes, "scan_steps", lambda *_: iter(()))
    other.replica.flip(BLOCK, 5)
    other.replica.flip(BLOCK, CHUNK_BYTES + 5)

    error = refusal(lambda: delete(mine, [other]))

    assert (Code.NOT_PROVEN, True) == (error.code, has(mine))
    assert "does not hold these bytes" in str(error)


def test_damaged_replica_is_deleted_for_a_whole_one(two: tuple[Datanode, Datanode]) -> None:
    """The witness need not have the bytes that are damaged here."""
    mine, other = two
    mine.replica.flip(BLOCK, 5)
    mine.replica.scan()

    delete(mine, [other])

    assert not has(mine)


def test_replica_is_kept_when_the_other_lacks_a_block(two: tuple[Datanode, Datanode]) -> None:
    """The replica stays also if the witness says that the block was deleted, unless the delete
    was ordered.
    """
    mine, other = two
    remove_blocks(other.replica.store, CONTAINER, [BLOCK])

    error = refusal(lambda: delete(mine, [other]))
    assert (Code.NOT_PROVEN, True) == (error.code, has(mine))

    delete(mine, [other], deletes(mine, ordered=[BLOCK]))
    assert not has(mine)


@pytest.mark.parametrize("way", ["damaged", "lost", "lost and not scanned", "all lost", "adopted"])
def test_replica_with_lost_rows_is_kept_if_the_other_lacks_the_block(
    two: tuple[Datanode, Datanode], way: str
) -> None:
    """A scan leaves a block whose row is lost or damaged out of the tree. Its bytes may be the
    last ones, and the row of another replica would make them readable again.
    """
    mine, other = two
    replica = mine.replica
    match way:
        case "damaged":
            replica.damage_row(BLOCK)
        case "lost" | "lost and not scanned":
            replica.delete_row(BLOCK)
        case _:
            replica.lose_index()
    if way not in {"lost and not scanned", "adopted"}:
        replica.scan()
    remove_blocks(other.replica.store, CONTAINER, [BLOCK])

    error = refusal(lambda: delete(mine, [other]))

    assert (Code.NOT_PROVEN, True) == (error.code, has(mine))
    assert replica.file(BLOCK).exists()
    delete(mine, [other], deletes(mine, ordered=[BLOCK]))
    assert not has(mine)


def test_replica_with_lost_rows_is_deleted_if_the_other_has_the_blocks(
    two: tuple[Datanode, Datanode],
) -> None:
    """A replica without rows is deleted in favour of a whole one. A witness that has nothing of
    a block proves nothing.
    """
    mine, other = two
    mine.replica.lose_index()
    mine.replica.scan()
    other.replica.store.delete_container(CONTAINER, force=True)
    other.replica.store.create_container(CONTAINER)
    other.replica.put(1, CHUNK_BYTES, CHUNK_BYTES + 1)
    other.replica.store.close_container(CONTAINER, force=True)

    error = refusal(lambda: delete(mine, [other]))
    assert (Code.NOT_PROVEN, True) == (error.code, has(mine))
    assert "it has no data of block 2" in str(error)

    other.replica.store.delete_container(CONTAINER, force=True)
    other.replica.create()
    delete(mine, [other])
    assert not has(mine)


def test_two_do_not_go_because_of_each_other(two: tuple[Datanode, Datanode]) -> None:
    """A datanode that has proven its replica keeps it. One that is about to delete its replica
    proves nothing.
    """
    mine, other = two
    with mine.pins.deleting(CONTAINER):
        error = refusal(lambda: delete(other, [mine]))
    assert (Code.NOT_PROVEN, True) == (error.code, has(other))
    assert "it is being deleted here" in str(error)

    delete(mine, [other])
    error = refusal(lambda: delete(other, [mine]))
    assert isinstance(error, UnavailableError)
    assert (Code.BUSY, True) == (error.code, has(other))
    [left_s] = re.findall(r"relies on this one for (\d+) s", str(error))
    assert 0 < int(left_s) <= 30, "a witness is bound for seconds, not for as long as reading"


def test_small_samples_are_proven_in_one_call(
    two: tuple[Datanode, Datanode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each has a nonce of its own there, too.
    """
    mine, other = two
    together: list[int] = []
    prove_chunks = Peer.prove_chunks

    def noted(
        self: Peer, container_id: ContainerId, asked: Sequence[tuple[BlockId, int, bytes]]
    ) -> object:
        together.append(len({nonce for _, _, nonce in asked}))
        return prove_chunks(self, container_id, asked)

    monkeypatch.setattr(Peer, "prove_chunks", noted)
    chunk_count = len(mine.replica.store.view(CONTAINER).tree().chunk_spans)

    delete(mine, [other])

    assert not has(mine)
    assert [chunk_count] == together


@pytest.mark.parametrize(("step", "goes"), [("_check_samples", True), ("proof", False)])
def test_the_witness_has_the_last_word_right_before(
    two: tuple[Datanode, Datanode], monkeypatch: pytest.MonkeyPatch, step: str, goes: bool
) -> None:
    """A proof may take long, and the witness pins its replica at the end. A pin that
    waited too long is not accepted.
    """
    mine, other = two
    clock = FakeClock()
    real = getattr(ReplicaProofCollector, step)

    def slow(*arguments: object) -> object:
        answer = real(*arguments)
        clock.advance_s(10 * KEEP_S)
        return answer

    monkeypatch.setattr(ReplicaProofCollector, step, slow)
    made = replace(deletes(mine), clock=clock)

    if goes:
        delete(mine, [other], made)
    else:
        assert "too old" in str(refusal(lambda: delete(mine, [other], made)))

    assert goes is not has(mine)


def test_delete_needs_only_one_valid_witness(
    tmp_path: Path, two: tuple[Datanode, Datanode]
) -> None:
    """Damaged and unreachable witnesses are skipped."""
    mine, other = two
    third = Datanode("dn3", tmp_path / "dn3")
    third.replica.create()
    third.replica.flip(BLOCK, 1)
    third.serve()

    delete(mine, [third, other])
    third.close()

    assert not has(mine)


def test_witness_with_a_recent_scan_is_not_read_again(two: tuple[Datanode, Datanode]) -> None:
    """A scan within the configured age is enough. The presence of the chunks is proven all the
    same.
    """
    mine, other = two
    other.replica.scan()
    reads = told(other).count("verdict")

    delete(mine, [other], deletes(mine, age_max_s=3600.0))

    assert (False, reads) == (has(mine), told(other).count("verdict"))


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("at", [5, CHUNK_BYTES + 5])
def test_any_chunk_lost_since_the_witness_read_it_is_found(
    two: tuple[Datanode, Datanode], block: int, at: int
) -> None:
    """
    The witness does not read again what it read within the hour. Sixteen chunks are proven, and a
    replica that has no more than those is proven whole, however few blocks they are in.
    """
    mine, other = two
    other.replica.scan()
    other.replica.flip(BlockId(block), at)

    error = refusal(lambda: delete(mine, [other], deletes(mine, age_max_s=3600.0)))

    assert (Code.NOT_PROVEN, True) == (error.code, has(mine))
    assert "does not hold these bytes" in str(error)


def test_replica_changed_during_its_proof_is_kept(
    two: tuple[Datanode, Datanode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof does not cover the changed replica."""
    mine, other = two
    made = deletes(mine)
    real = ReplicaDeleter._proof

    def proof(*arguments: object) -> ReplicaProof:
        found = real(*arguments)  # type: ignore[arg-type]
        remove_blocks(mine.replica.store, CONTAINER, [BLOCK])
        return found

    monkeypatch.setattr(ReplicaDeleter, "_proof", proof)
    error = refusal(lambda: delete(mine, [other], made))

    assert isinstance(error, RefusedError)
    assert (Code.NOT_PROVEN, True) == (error.code, has(mine))


def test_a_delete_that_failed_halfway_is_finished(
    two: tuple[Datanode, Datanode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The proof was given when it began; what is left of the replica proves nothing any more.
    """
    mine, other = two

    def fail(*_: object) -> None:
        raise VolumeFailed(Code.IO_EXCEPTION, "the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(deleting, "finish_delete", fail)
        assert Code.IO_EXCEPTION is refusal(lambda: delete(mine, [other])).code
    assert has(mine)
    other.replica.flip(BLOCK, 5)

    delete(mine, [other])

    assert not has(mine)


def test_without_witnesses_the_order_is_enough(two: tuple[Datanode, Datanode]) -> None:
    """The control plane would have named the holders, so no other datanode needs the container."""
    mine, _ = two

    delete(mine, [])

    assert not has(mine)
