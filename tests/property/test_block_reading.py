"""A block is read whole as long as each of its chunks is healthy in some replica."""

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.client.blockreader import SILENT_COUNT_MAX, BlockReader, Holder, Place
from agent.errors import Code, Refused, SutureError, Unavailable, VolumeFailed
from merkle.checksum import window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId

CONTAINER, BLOCK = ContainerId(7), BlockId(3)
REPLICA_COUNT, CHUNK_COUNT_MAX = 3, 8
FAULTS = {
    "corrupt": Refused(Code.CHECKSUM_MISMATCH, "the bytes do not have their checksums"),
    "unreadable": VolumeFailed(Code.IO_EXCEPTION, "the disk gave an error"),
    "silent": Unavailable(Code.UNAVAILABLE, "nobody answers"),
}


class Replica:
    """One datanode's copy of a block, with faults at some chunks; it counts what is asked of it."""

    def __init__(
        self, chunks: list[bytes], faults: dict[int, str], *, has_row: bool = True
    ) -> None:
        self.faults = faults
        self.has_row = has_row
        self.asked: list[int] = []
        self.list_count = 0
        self._parts = chunks
        self._chunks = []
        for data in chunks:
            sums = window_checksums(ChecksumType.CRC32C, 16, data)
            offset = self._chunks[-1].end if self._chunks else 0
            self._chunks.append(ChunkInfo(offset, len(data), ChecksumType.CRC32C, 16, sums))

    def block(self, container_id: ContainerId, block_id: BlockId, /) -> BlockData:
        """Return the row."""
        assert (CONTAINER, BLOCK) == (container_id, block_id)
        self.list_count += 1
        if not self.has_row:
            raise Refused(Code.NO_SUCH_BLOCK, "there is no such block")
        return BlockData(block_id, Bcsid(1), tuple(self._chunks))

    def read_chunk(
        self, container_id: ContainerId, block_id: BlockId, offset: int, /
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk, or fail as this replica does there."""
        assert (CONTAINER, BLOCK) == (container_id, block_id)
        [number] = [n for n, chunk in enumerate(self._chunks) if chunk.offset == offset]
        self.asked.append(number)
        if number in self.faults:
            raise FAULTS[self.faults[number]]
        return self._chunks[number], self._parts[number]


def reader_of(replicas: list[Replica], length_bytes: int) -> BlockReader:
    """Return a reader that asks dn0, dn1, dn2 in this order."""
    holders = [Holder(f"dn{number}", replica) for number, replica in enumerate(replicas)]
    return BlockReader(Place(CONTAINER, BLOCK, length_bytes, "a/key"), holders)


CHUNKS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=CHUNK_COUNT_MAX)
DAMAGE = st.dictionaries(
    st.integers(0, CHUNK_COUNT_MAX - 1), st.sampled_from(["corrupt", "unreadable"])
)


@settings(max_examples=200, deadline=None)
@given(CHUNKS, st.lists(DAMAGE, min_size=REPLICA_COUNT, max_size=REPLICA_COUNT))
def test_what_is_healthy_anywhere_is_read(
    chunks: list[bytes], damage: list[dict[int, str]]
) -> None:
    """
    Any placement of damage: the block comes whole, or up to the first chunk that nobody has, and
    then the error names block, offset and what each replica said. No replica is asked twice for
    one chunk.
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
        assert f"block {BLOCK} of container {CONTAINER} for a/key" in str(error)
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
    """
    One replica has the block as one chunk, damaged or not: the bytes are the same.
    """
    whole = b"".join(chunks)
    first = Replica(chunks, data.draw(DAMAGE))
    second = Replica([whole], {})

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
    assert 1 == without.list_count
    assert {"dn0", "dn1", "dn2"} == set(reader.faults)


def test_who_does_not_answer_is_given_up_after_a_few_tries() -> None:
    """
    A dead host costs a few deadlines, not one for every chunk that is bad elsewhere.
    """
    chunks = [bytes([number]) * 20 for number in range(8)]
    dead = Replica(chunks, dict.fromkeys(range(8), "silent"))
    odd = Replica(chunks, dict.fromkeys(range(1, 8, 2), "corrupt"))
    even = Replica(chunks, dict.fromkeys(range(0, 8, 2), "corrupt"))

    assert b"".join(chunks) == b"".join(reader_of([dead, odd, even], 160).read())
    assert len(dead.asked) <= SILENT_COUNT_MAX


def test_who_answers_between_silences_is_not_given_up() -> None:
    """
    Each answer begins the count anew: here the silent one alone has every second chunk.
    """
    chunks = [bytes([number]) * 20 for number in range(2 * SILENT_COUNT_MAX + 2)]
    unsteady = Replica(chunks, dict.fromkeys(range(0, len(chunks), 2), "silent"))
    damaged = Replica(chunks, dict.fromkeys(range(1, len(chunks), 2), "corrupt"))

    read = b"".join(reader_of([unsteady, damaged], 20 * len(chunks)).read())

    assert b"".join(chunks) == read
    assert len([n for n in unsteady.asked if n in unsteady.faults]) > SILENT_COUNT_MAX


def test_a_dead_host_and_a_bad_chunk_are_both_named() -> None:
    """
    Also when it was given up before this chunk.
    """
    chunks = [bytes([number]) * 20 for number in range(8)]
    dead = Replica(chunks, dict.fromkeys(range(8), "silent"))
    bad = Replica(chunks, {7: "corrupt"})

    with pytest.raises(Unavailable) as caught:
        list(reader_of([dead, bad], 160).read())

    said = str(caught.value)
    assert "chunk at offset 140" in said
    assert f"dn0: {FAULTS['silent']}" in said
    assert f"dn1: {FAULTS['corrupt']}" in said


def test_a_chunk_that_is_not_the_listed_one_is_read_elsewhere() -> None:
    """
    A replica that was repaired between its list and its chunk: the chunk may end elsewhere now.
    """

    class Shifting(Replica):
        def read_chunk(
            self, container_id: ContainerId, block_id: BlockId, offset: int, /
        ) -> tuple[ChunkInfo, bytes]:
            chunk, data = super().read_chunk(container_id, block_id, offset)
            return replace(chunk, length_bytes=chunk.length_bytes - 1), data[:-1]

    chunks = [b"a" * 20, b"b" * 20]
    reader = reader_of([Shifting(chunks, {}), Replica(chunks, {})], 40)

    read = list(islice(reader.read(), 10))  # of a shorter chunk nothing is left: it would never end

    assert chunks == read


def test_a_replica_that_was_repaired_meanwhile_is_asked_what_it_has_now() -> None:
    """
    The chunk that betrays it is read elsewhere; the next one, which only it has, from itself.
    """

    class Repaired(Replica):
        def block(self, container_id: ContainerId, block_id: BlockId, /) -> BlockData:
            row = super().block(container_id, block_id)
            if self.list_count > 1:
                return row
            sums = window_checksums(ChecksumType.CRC32C, 16, b"?" * 20)
            return replace(row, chunks=tuple(replace(c, window_checksums=sums) for c in row.chunks))

    chunks = [b"a" * 20, b"b" * 20, b"c" * 20]
    repaired, damaged = Repaired(chunks, {}), Replica(chunks, {1: "corrupt", 2: "corrupt"})

    assert b"".join(chunks) == b"".join(reader_of([repaired, damaged], 60).read())
    assert 2 == repaired.list_count
