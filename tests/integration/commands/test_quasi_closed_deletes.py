"""Replicas that are not closed for good are proven like others, and none waits for ever for a proof
that nobody can give: what one has to have is what is whole here."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agent.commands.replica_delete import ReplicaDeleter
from merkle.checksum import window_checksums
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ReplicaState
from suture.errors import Code, RefusedError
from suture.runtime.clock import SystemClock
from tests.support.storage.datanodes import Datanode, dialled
from tests.support.storage.stored_replica import (
    CHUNK_BYTES,
    CONTAINER,
    WINDOW_BYTES,
    StoredReplica,
    noise,
)

TIMEOUT_S = 20.0
LAST = 3  # commit
QUASI, CLOSED = ReplicaState.QUASI_CLOSED, ReplicaState.CLOSED


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Datanode, Datanode]]:
    """Two datanodes that have nothing yet."""
    made = [Datanode(name, tmp_path / name) for name in ("dn1", "dn2")]
    for one in made:
        one.serve()
    yield made[0], made[1]
    for one in made:
        one.close()


def write(datanode: Datanode, lengths: Sequence[Sequence[int]]) -> StoredReplica:
    """Write blocks 1, 2, ... of chunks of these lengths; commit n is block n's."""
    replica = datanode.replica
    replica.store.create_container(CONTAINER)
    for number, chunks in enumerate(lengths, 1):
        replica.put(number, *chunks)
    return replica


WHOLE = ((CHUNK_BYTES, 7),) * LAST


def close(datanode: Datanode, state: ReplicaState) -> None:
    """Close a replica: for good, or as one that may lack commits."""
    store = datanode.replica.store
    store.close_container(CONTAINER, bcsid=LAST + 1, force=state is CLOSED)
    assert state is store.replica(CONTAINER).state


def delete(mine: Datanode, other: Datanode) -> str:
    """Delete a replica whose witness is the other; return why it stays, "" if it has gone."""
    made = ReplicaDeleter(
        store=mine.replica.store,
        leases=mine.replica.leases,
        pins=mine.pins,
        clock=SystemClock(),
        confirmed=lambda *_: frozenset(),
        age_max_s=0.0,
    )
    why, code = "", None
    with dialled([other]) as peers:
        try:
            made.delete(CONTAINER, peers, force=True, timeout_s=TIMEOUT_S)
        except RefusedError as error:
            why, code = str(error), error.code
    assert bool(why) is (CONTAINER in mine.replica.store.replica_ids())
    assert not why or code is Code.NOT_PROVEN
    return why


@pytest.mark.parametrize("state", [QUASI, CLOSED])
def test_quasi_closed_replica_with_an_equal_witness_is_deleted(
    two: tuple[Datanode, Datanode], state: ReplicaState
) -> None:
    """The witness may be closed or quasi-closed."""
    mine, other = two
    for one in two:
        write(one, WHOLE)
    close(mine, QUASI)
    close(other, state)

    assert not delete(mine, other)


def test_quasi_closed_replica_is_kept_when_the_witness_lost_bytes(
    two: tuple[Datanode, Datanode],
) -> None:
    """Both reported the same state, and this replica is the last whole one."""
    mine, other = two
    for one in two:
        write(one, WHOLE)
        close(one, QUASI)
    other.replica.flip(2, 5)

    assert "no peer proved that it has the data" in delete(mine, other)


@pytest.mark.parametrize("state", [QUASI, CLOSED])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_stale_one_goes_when_another_has_more(
    two: tuple[Datanode, Datanode], state: ReplicaState, *, is_damaged: bool
) -> None:
    """The stale replica missed a chunk and a block, so its tree will never equal the others'.
    The others have everything else that it has.
    """
    mine, other = two
    write(mine, ((CHUNK_BYTES, 7), (CHUNK_BYTES,)))
    write(other, WHOLE)
    close(mine, QUASI)
    close(other, state)
    if is_damaged:
        mine.replica.flip(1, 5)
        mine.replica.scan()

    assert not delete(mine, other)


@pytest.mark.parametrize("way", ["flip", "lost file", "lost row", "damaged row", "lost index"])
def test_a_damaged_one_goes_when_a_quasi_closed_one_is_whole(
    two: tuple[Datanode, Datanode], way: str
) -> None:
    """Damaged blocks need no proof. The other replica has every block of which this one has
    bytes.
    """
    mine, other = two
    for one in two:
        write(one, WHOLE)
        close(one, QUASI)
    harms: dict[str, Callable[[], object]] = {
        "flip": lambda: mine.replica.flip(2, 5),
        "lost file": lambda: mine.replica.file(2).unlink(),
        "lost row": lambda: mine.replica.delete_row(2),
        "damaged row": lambda: mine.replica.damage_row(2),
        "lost index": mine.replica.lose_index,
    }
    harms[way]()
    mine.replica.scan()
    assert ReplicaState.UNHEALTHY is mine.replica.store.replica(CONTAINER).state

    assert not delete(mine, other)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_quasi_closed_replica_with_blocks_of_its_own_is_kept(
    two: tuple[Datanode, Datanode], *, is_damaged: bool
) -> None:
    """The other replica reports as many commits. A block that is whole nowhere else is not
    deleted.
    """
    mine, other = two
    write(mine, WHOLE)
    write(other, WHOLE[:-1])
    for one in two:
        close(one, QUASI)
    if is_damaged:
        mine.replica.flip(1, 5)
        mine.replica.scan()

    assert "it lacks parts of block 3" in delete(mine, other)


def test_uncommitted_chunks_do_not_prevent_a_delete(two: tuple[Datanode, Datanode]) -> None:
    """A dead writer left the chunks on some datanodes only, as usual for a quasi-closed
    container. No other replica will ever have them.
    """
    mine, other = two
    for one in two:
        write(one, WHOLE)
    for block_id, offset in ((9, 0), (LAST, CHUNK_BYTES + 7)):
        data = noise(100, block_id)
        sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, data)
        chunk = ChunkInfo(offset, 100, ChecksumType.CRC32C, WINDOW_BYTES, sums)
        mine.replica.store.writer(CONTAINER).write_chunk(BlockId(block_id), chunk, data)
    for one in two:
        close(one, QUASI)
    mine.replica.flip(1, 5)
    mine.replica.scan()

    assert not delete(mine, other)
