"""A block is read whole as long as each of its chunks is healthy in some replica."""

from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merkle.replica import BlockId, ContainerId
from suture.client.block_reader import SILENT_COUNT_MAX, ReplicaBlockReader, ReplicaSource
from suture.client.replica_ranking import ANSWERS_MIN, DatanodeStats
from suture.errors import Code, RefusedError, SutureError, UnavailableError, VolumeFailed
from suture.wire.clients.response_checks import SMALL_BYTES_MAX

CONTAINER, BLOCK = ContainerId(7), BlockId(3)
REPLICA_COUNT, CHUNK_COUNT_MAX = 3, 8
FAULTS = {
    "corrupt": RefusedError(Code.CHECKSUM_MISMATCH, "the bytes do not have their checksums"),
    "unreadable": VolumeFailed(Code.IO_EXCEPTION, "the disk gave an error"),
    "silent": UnavailableError(Code.UNAVAILABLE, "nobody answers"),
}


class Replica:
    """One datanode's copy of a block, with faults at some chunks; it counts what is asked of it."""

    def __init__(
        self,
        chunks: list[bytes],
        faults: dict[int, str],
        *,
        has_row: bool = True,
        piece_bytes: int = 1_000,
    ) -> None:
        self.faults = faults
        self.has_row = has_row
        self.asked: list[int] = []
        self.call_count = 0
        self.patience: list[float | None] = []
        self.piece_bytes = piece_bytes
        self._parts = chunks

    def parts_from(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        end: int,
        /,
        *,
        patience_s: float | None = None,
    ) -> Iterator[tuple[int, bytes]]:
        """Yield chunk after chunk, up to the first at which this replica fails."""
        assert (CONTAINER, BLOCK) == (container_id, block_id)
        assert offset < end
        self.call_count += 1
        self.patience.append(patience_s)
        if not self.has_row:
            raise RefusedError(Code.NO_SUCH_BLOCK, "there is no such block")
        start = 0
        for number, part in enumerate(self._parts):
            if start + len(part) > offset:
                self.asked.append(number)
                if number in self.faults:
                    raise FAULTS[self.faults[number]]
                yield from self._cut(start, part)
            start += len(part)

    def _cut(self, start: int, part: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield a chunk in pieces of at most `piece_bytes`, with their places."""
        for at in range(0, len(part), self.piece_bytes):
            yield start + at, part[at : at + self.piece_bytes]


def reader_of(replicas: list[Replica], length_bytes: int) -> ReplicaBlockReader:
    """Return a reader that asks dn0, dn1, dn2 in this order."""
    holders = [ReplicaSource(f"dn{number}", replica) for number, replica in enumerate(replicas)]
    return ReplicaBlockReader(CONTAINER, BLOCK, length_bytes, "a/key", holders)


CHUNKS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=CHUNK_COUNT_MAX)
DAMAGE = st.dictionaries(
    st.integers(0, CHUNK_COUNT_MAX - 1), st.sampled_from(["corrupt", "unreadable"])
)


@settings(max_examples=200, deadline=None)
@given(CHUNKS, st.lists(DAMAGE, min_size=REPLICA_COUNT, max_size=REPLICA_COUNT))
def test_chunks_healthy_on_any_replica_are_read(
    chunks: list[bytes], damage: list[dict[int, str]]
) -> None:
    """For any placement of damage, the block is read whole, or up to the first chunk that no
    replica has. The error then names block, offset and each replica's answer. No replica is
    asked twice for one chunk.
    """
    replicas = [Replica(chunks, faults) for faults in damage]
    lost = [n for n in range(len(chunks)) if all(n in faults for faults in damage)]
    read, error = b"", None

    try:
        for part in reader_of(replicas, len(b"".join(chunks))).read():
            read += part
    except SutureError as caught:
        error = caught

    assert b"".join(chunks[: lost[0]] if lost else chunks) == read
    assert bool(lost) == (error is not None)
    if error is not None:
        assert f"cannot read a/key: no good copy of block {BLOCK} of container {CONTAINER}" in str(
            error
        )
        assert f"chunk at offset {len(read)}" in str(error)
        for number, faults in enumerate(damage):
            assert f"dn{number}: {FAULTS[faults[lost[0]]]}" in str(error)
    for replica in replicas:
        assert len(replica.asked) == len(set(replica.asked))


@settings(max_examples=100, deadline=None)
@given(CHUNKS, st.data())
def test_replicas_that_cut_the_block_differently_still_make_it_whole(
    chunks: list[bytes], data: st.DataObject
) -> None:
    """One replica has the block as one chunk, damaged or not, and the bytes are the same."""
    whole = b"".join(chunks)
    first = Replica(chunks, data.draw(DAMAGE), piece_bytes=data.draw(st.integers(1, 9)))
    second = Replica([whole], {}, piece_bytes=data.draw(st.integers(1, 9)))

    assert whole == b"".join(reader_of([first, second], len(whole)).read())


def test_a_replica_without_the_row_is_asked_for_it_once() -> None:
    """
    A lost row costs one question, and the others give the block, in however many chunks.
    """
    chunks = [b"a" * 20, b"b" * 20]
    without = Replica(chunks, {}, has_row=False)
    with_damage = [Replica(chunks, {0: "corrupt"}), Replica(chunks, {1: "corrupt"})]
    reader = reader_of([without, *with_damage], 40)

    assert b"".join(chunks) == b"".join(reader.read())
    assert [] == without.asked
    assert 1 == without.call_count
    assert {"dn0", "dn1", "dn2"} == set(reader.faults)


def test_silent_replica_is_given_up_after_a_few_tries() -> None:
    """A dead host costs a few deadlines, not one for every chunk that is bad elsewhere."""
    chunks = [bytes([number]) * 20 for number in range(8)]
    dead = Replica(chunks, dict.fromkeys(range(8), "silent"))
    odd = Replica(chunks, dict.fromkeys(range(1, 8, 2), "corrupt"))
    even = Replica(chunks, dict.fromkeys(range(0, 8, 2), "corrupt"))

    assert b"".join(chunks) == b"".join(reader_of([dead, odd, even], 160).read())
    assert len(dead.asked) <= SILENT_COUNT_MAX


def test_replica_that_answers_between_silences_stays_in_use() -> None:
    """Each answer resets the count. The unsteady replica alone has every second chunk."""
    chunks = [bytes([number]) * 20 for number in range(2 * SILENT_COUNT_MAX + 2)]
    unsteady = Replica(chunks, dict.fromkeys(range(0, len(chunks), 2), "silent"))
    damaged = Replica(chunks, dict.fromkeys(range(1, len(chunks), 2), "corrupt"))

    read = b"".join(reader_of([unsteady, damaged], 20 * len(chunks)).read())

    assert b"".join(chunks) == read
    assert len([n for n in unsteady.asked if n in unsteady.faults]) > SILENT_COUNT_MAX


def test_a_dead_host_and_a_bad_chunk_are_both_named() -> None:
    """The dead host is named even if it was given up before this chunk."""
    chunks = [bytes([number]) * 20 for number in range(8)]
    dead = Replica(chunks, dict.fromkeys(range(8), "silent"))
    bad = Replica(chunks, {7: "corrupt"})

    with pytest.raises(UnavailableError) as caught:
        list(reader_of([dead, bad], 160).read())

    said = str(caught.value)
    assert "chunk at offset 140" in said
    assert f"dn0: {FAULTS['silent']}" in said
    assert f"dn1: {FAULTS['corrupt']}" in said


def test_healthy_replica_serves_a_block_in_one_call() -> None:
    """The other replicas are not asked."""
    chunks = [bytes([number]) * 20 for number in range(8)]
    replicas = [Replica(chunks, {}), Replica(chunks, {})]

    assert b"".join(chunks) == b"".join(reader_of(replicas, 160).read())
    assert [1, 0] == [replica.call_count for replica in replicas]


@pytest.mark.parametrize("shift", [-20, 20, 45], ids=["before", "after", "behind the end"])
def test_a_part_that_is_not_due_is_not_taken(shift: int) -> None:
    """
    Its bytes have their checksums, and belong elsewhere: another replica gives what is due.
    """

    class Shifting(Replica):
        def parts_from(
            self,
            container_id: ContainerId,
            block_id: BlockId,
            offset: int,
            end: int,
            /,
            *,
            patience_s: float | None = None,
        ) -> Iterator[tuple[int, bytes]]:
            for start, data in super().parts_from(
                container_id, block_id, offset, end, patience_s=patience_s
            ):
                yield start + (shift if start == 20 else 0), data

    chunks = [b"a" * 20, b"b" * 20, b"c" * 20]
    reader = reader_of([Shifting(chunks, {}), Replica(chunks, {})], 60)

    read = list(islice(reader.read(), 10))  # what never comes further would never end

    assert chunks == read
    assert ["dn0"] == list(reader.faults)


def test_a_chunk_beyond_the_length_of_the_key_is_not_taken() -> None:
    """
    A replica whose block goes on is not the one that the key names.
    """
    longer, right = Replica([b"a" * 30], {}), Replica([b"a" * 20], {})

    assert b"a" * 20 == b"".join(reader_of([longer, right], 20).read())


def test_a_replica_that_ends_too_early_leaves_the_rest_to_another() -> None:
    """Its bytes are used. The rest comes from another replica, or the error names it."""
    short, whole = Replica([b"a" * 20], {}), Replica([b"a" * 20, b"b" * 20], {})

    assert b"a" * 20 + b"b" * 20 == b"".join(reader_of([short, whole], 40).read())
    with pytest.raises(UnavailableError, match="dn0: has 20 of 40 bytes"):
        list(reader_of([short], 40).read())


def test_the_time_until_a_first_chunk_is_noted_once_for_each_call() -> None:
    """
    That is what a replica's speed is judged by.
    """

    class Noting(DatanodeStats):
        def record_latency(self, datanode_id: str, duration_s: float) -> None:
            told.append(datanode_id)
            assert duration_s >= 0

    chunks = [b"a" * 20, b"b" * 20, b"c" * 20]
    told: list[str] = []
    reader = reader_of([Replica(chunks, {1: "corrupt"}), Replica(chunks, {})], 60)
    reader.conduct = Noting()

    assert b"".join(chunks) == b"".join(reader.read())
    assert ["dn0", "dn1"] == told


def hurried(replicas: list[Replica]) -> ReplicaBlockReader:
    """Return a reader that waits for its first replica no time at all."""
    reader = reader_of(replicas, 20)
    for _ in range(ANSWERS_MIN):
        reader.conduct.record_latency("dn0", 0.0)
    reader.conduct._usual_s = -1.0
    return reader


def test_late_replica_is_skipped_without_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second replica is waited for without a limit, and so is the first if it is asked again
    because the second has no data.
    """
    monkeypatch.setattr("suture.client.replica_ranking.PATIENCE_S_MIN", 0.0)
    late = Replica([b"a" * 20], {0: "silent"})
    good = Replica([b"a" * 20], {})
    reader = hurried([late, good])

    assert b"a" * 20 == b"".join(reader.read())
    assert ([0.0], [None]) == (late.patience, good.patience)
    assert {} == reader.faults

    class Awakened(Replica):
        @property
        def faults(self) -> dict[int, str]:
            return {0: "silent"} if self.call_count < 2 else {}

        @faults.setter
        def faults(self, _faults: dict[int, str]) -> None:
            """Take none."""

    awakened, bad = Awakened([b"a" * 20], {}), Replica([b"a" * 20], {0: "corrupt"})
    again = hurried([awakened, bad])

    assert b"a" * 20 == b"".join(again.read())
    assert [0.0, None] == awakened.patience
    assert ["dn1"] == list(again.faults)


def test_damage_that_comes_late_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender is reported however long it took, and does not only count as slow."""
    monkeypatch.setattr("suture.client.replica_ranking.PATIENCE_S_MIN", 0.0)
    bad, good = Replica([b"a" * 20], {0: "corrupt"}), Replica([b"a" * 20], {})
    reader = hurried([bad, good])

    assert b"a" * 20 == b"".join(reader.read())
    assert [0.0] == bad.patience
    assert ["dn0"] == list(reader.faults)


def test_large_block_has_no_time_limit() -> None:
    """Its data is consumed while it arrives, so no caller waits for all of it."""
    size_bytes = SMALL_BYTES_MAX + 1
    large = Replica([bytes(size_bytes)], {}, piece_bytes=size_bytes)
    reader = hurried([large, Replica([], {})])
    reader.length_bytes = size_bytes

    assert size_bytes == sum(len(part) for part in reader.read())
    assert [None] == large.patience


def test_only_replica_has_no_time_limit() -> None:
    """There is no limit either before the usual time of an answer is known."""
    only, first, second = (Replica([b"a" * 20], {}) for _ in range(3))
    b"".join(hurried([only]).read())
    b"".join(reader_of([first, second], 20).read())

    assert [None] == only.patience == first.patience
