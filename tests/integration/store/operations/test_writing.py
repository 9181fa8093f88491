"""The write path: what is acknowledged is durable and readable, what is refused changes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.store.recovery.fsck import fsck
from agent.store.replica_store import ReplicaStore
from merkle.checksum import window_checksums
from merkle.replica import (
    ID_MAX,
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
    ReplicaState,
)
from suture.errors import Code, RefusedError
from tests.support.storage.stores import (
    CHUNK_BYTES,
    bare_chunk,
    chunk_of,
    content,
    open_store,
    options_of_test,
    state_of,
    write_block,
)

ONE = ContainerId(1)
BLOCK = BlockId(11)
A, B, C = (content(name) for name in "abc")
CHUNK_A, CHUNK_B = chunk_of(A), chunk_of(B, CHUNK_BYTES)


class TestWriteChunk:
    """Chunks, one at a time."""

    def test_a_written_chunk_is_readable_before_its_commit(self, opened: ReplicaStore) -> None:
        """
        The acknowledgement means that the bytes can be had.
        """
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A)

        assert A == opened.view(ONE).read(BLOCK, 0, CHUNK_BYTES)

    @pytest.mark.parametrize("checksum_type", list(ChecksumType))
    def test_every_checksum_type_is_accepted(
        self, opened: ReplicaStore, checksum_type: ChecksumType
    ) -> None:
        """
        A client chooses how its data is summed.
        """
        chunk = chunk_of(A, checksum_type=checksum_type)

        recorded = opened.writer(ONE).write_chunk(
            BLOCK, chunk, A, commit=BlockData(BLOCK, Bcsid(1), (chunk,))
        )

        assert chunk == recorded
        assert (chunk,) == opened.view(ONE).block(BLOCK).chunks

    def test_a_chunk_without_checksums_gets_crc32c(self, opened: ReplicaStore) -> None:
        """Stored bytes can be verified even if their writer sent no checksums."""
        recorded = opened.writer(ONE).write_chunk(BLOCK, bare_chunk(A), A)

        assert ChecksumType.CRC32C is recorded.checksum_type
        expected = window_checksums(ChecksumType.CRC32C, recorded.bytes_per_checksum, A)
        assert expected == recorded.window_checksums

    def test_the_same_chunk_again_is_acknowledged_again(self, opened: ReplicaStore) -> None:
        """
        A client whose acknowledgement got lost may repeat itself.
        """
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A)
        before = state_of(opened, ONE)

        opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A)

        assert before == state_of(opened, ONE)

    def test_an_uncommitted_chunk_may_be_written_otherwise(self, opened: ReplicaStore) -> None:
        """
        Until a commit names it, a chunk is its client's to replace; those behind it stay.
        """
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A)
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_B, B)

        opened.writer(ONE).write_chunk(BLOCK, chunk_of(C), C)

        assert C + B == opened.view(ONE).read(BLOCK, 0, 2 * CHUNK_BYTES)
        opened.writer(ONE).put_block(BlockData(BLOCK, Bcsid(1), (chunk_of(C), CHUNK_B)))
        assert 2 * CHUNK_BYTES == opened.replica(ONE).used_bytes

    def test_a_committed_chunk_without_checksums_may_be_repeated_byte_for_byte(
        self, opened: ReplicaStore
    ) -> None:
        """Without checksums the disk shows whether the chunk is a repetition."""
        chunk = chunk_of(A, checksum_type=ChecksumType.NONE)
        block = BlockData(BLOCK, Bcsid(1), (chunk,))
        opened.writer(ONE).write_chunk(BLOCK, chunk, A, commit=block)

        opened.writer(ONE).write_chunk(BLOCK, chunk, A, commit=block)

        with pytest.raises(RefusedError) as refusal:
            opened.writer(ONE).write_chunk(BLOCK, chunk, B, commit=block)
        assert Code.OVERLAPPING_CHUNK is refusal.value.code
        assert A == opened.view(ONE).read(BLOCK, 0, CHUNK_BYTES)

    def test_bytes_that_nobody_acknowledged_are_written_over(self, opened: ReplicaStore) -> None:
        """Bytes that a crash left behind the recorded end never become part of a block."""
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A)
        with opened.paths(ONE).block_file(BLOCK).open("ab") as file:
            file.write(b"left by a crash" * 5000)

        opened.writer(ONE).write_chunk(BLOCK, CHUNK_B, B)

        assert A + B == opened.paths(ONE).block_file(BLOCK).read_bytes()


REFUSALS: dict[str, tuple[Code, Callable[[ReplicaStore], object]]] = {
    "wrong checksum": (
        Code.CHECKSUM_MISMATCH,
        lambda store: store.writer(ONE).write_chunk(BLOCK, CHUNK_B, C),
    ),
    "overlap with a committed chunk": (
        Code.OVERLAPPING_CHUNK,
        lambda store: store.writer(ONE).write_chunk(BLOCK, chunk_of(C), C),
    ),
    "overlap in the middle": (
        Code.OVERLAPPING_CHUNK,
        lambda store: store.writer(ONE).write_chunk(BLOCK, chunk_of(C, CHUNK_BYTES // 2), C),
    ),
    "gap": (
        Code.CHUNK_GAP,
        lambda store: store.writer(ONE).write_chunk(BLOCK, chunk_of(C, 3 * CHUNK_BYTES), C),
    ),
    "unknown checksum type": (
        Code.NO_SUCH_ALGORITHM,
        lambda store: store.writer(ONE).write_chunk(
            BLOCK,
            CHUNK_B._replace(checksum_type=9),  # type: ignore[arg-type]
            B,
        ),
    ),
    "length that is not the data's": (
        Code.INVALID_WRITE_SIZE,
        lambda store: store.writer(ONE).write_chunk(BLOCK, CHUNK_B, B[:-1]),
    ),
    "no bytes": (
        Code.INVALID_WRITE_SIZE,
        lambda store: store.writer(ONE).write_chunk(BLOCK, chunk_of(b"", CHUNK_BYTES), b""),
    ),
    "chunk too long": (
        Code.INVALID_WRITE_SIZE,
        lambda store: store.writer(ONE).write_chunk(
            BLOCK, chunk_of(bytes(50_001), CHUNK_BYTES), bytes(50_001)
        ),
    ),
    "container full": (
        Code.INVALID_WRITE_SIZE,
        lambda store: store.writer(ONE).write_chunk(
            BlockId(12), chunk_of(bytes(45_000)), bytes(45_000)
        ),
    ),
    "negative offset": (
        Code.INVALID_WRITE_SIZE,
        lambda store: store.writer(ONE).write_chunk(BLOCK, CHUNK_B._replace(offset=-4096), B),
    ),
    "offset beyond any block": (
        Code.INVALID_WRITE_SIZE,
        lambda store: store.writer(ONE).write_chunk(BLOCK, CHUNK_B._replace(offset=2**62), B),
    ),
    "window too small": (
        Code.MALFORMED_REQUEST,
        lambda store: store.writer(ONE).write_chunk(
            BLOCK, chunk_of(B, CHUNK_BYTES, bytes_per_checksum=16), B
        ),
    ),
    "too few checksums": (
        Code.MALFORMED_REQUEST,
        lambda store: store.writer(ONE).write_chunk(
            BLOCK, CHUNK_B._replace(window_checksums=b"1234"), B
        ),
    ),
    "checksums for type NONE": (
        Code.MALFORMED_REQUEST,
        lambda store: store.writer(ONE).write_chunk(
            BLOCK, CHUNK_B._replace(checksum_type=ChecksumType.NONE), B
        ),
    ),
    "block id 0": (
        Code.MALFORMED_REQUEST,
        lambda store: store.writer(ONE).write_chunk(BlockId(0), CHUNK_A, A),
    ),
    "block id out of range": (
        Code.MALFORMED_REQUEST,
        lambda store: store.writer(ONE).write_chunk(BlockId(ID_MAX + 1), CHUNK_A, A),
    ),
    "unknown container": (
        Code.CONTAINER_NOT_FOUND,
        lambda store: store.writer(ContainerId(2)).write_chunk(BLOCK, CHUNK_A, A),
    ),
    "commit of another block": (
        Code.MALFORMED_REQUEST,
        lambda store: store.writer(ONE).write_chunk(
            BLOCK, CHUNK_B, B, commit=BlockData(BlockId(12), Bcsid(1), ())
        ),
    ),
    "commit that skips the chunk before": (
        Code.CHUNK_GAP,
        lambda store: store.writer(ONE).write_chunk(
            BLOCK, CHUNK_B, B, commit=BlockData(BLOCK, Bcsid(2), (CHUNK_B,))
        ),
    ),
    "commit of a chunk that was never written": (
        Code.UNABLE_TO_FIND_CHUNK,
        lambda store: store.writer(ONE).put_block(BlockData(BLOCK, Bcsid(2), (CHUNK_A, CHUNK_B))),
    ),
    "commit with other checksums": (
        Code.CHECKSUM_MISMATCH,
        lambda store: store.writer(ONE).put_block(BlockData(BLOCK, Bcsid(2), (chunk_of(C),))),
    ),
    "commit in disorder": (
        Code.OVERLAPPING_CHUNK,
        lambda store: store.writer(ONE).put_block(BlockData(BLOCK, Bcsid(2), (CHUNK_A, CHUNK_A))),
    ),
    "commit that takes a chunk back": (
        Code.OVERLAPPING_CHUNK,
        lambda store: store.writer(ONE).put_block(BlockData(BLOCK, Bcsid(2), ())),
    ),
    "commit older than the last": (
        Code.BCSID_MISMATCH,
        lambda store: store.writer(ONE).put_block(BlockData(BLOCK, Bcsid(0), (CHUNK_A,))),
    ),
    "bcsid out of range": (
        Code.MALFORMED_REQUEST,
        lambda store: store.writer(ONE).put_block(BlockData(BLOCK, Bcsid(-1), (CHUNK_A,))),
    ),
    "too much metadata": (
        Code.MALFORMED_REQUEST,
        lambda store: store.writer(ONE).put_block(
            BlockData(BLOCK, Bcsid(2), (CHUNK_A,), (("key", "x" * 100_000),))
        ),
    ),
    "metadata that is no text": (
        Code.MALFORMED_REQUEST,
        lambda store: store.writer(ONE).put_block(
            BlockData(BLOCK, Bcsid(2), (CHUNK_A,), (("key", "\ud800"),))
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_says_why_and_changes_nothing(tmp_path: Path, name: str) -> None:
    """
    A wrong request gets its own code; rows, counts and files are as before.
    """
    store = open_store(
        tmp_path, options=options_of_test(container_bytes_max=50_000, chunk_bytes_max=50_000)
    )
    store.create_container(ONE)
    store.writer(ONE).write_chunk(BLOCK, CHUNK_A, A, commit=BlockData(BLOCK, Bcsid(1), (CHUNK_A,)))
    before = state_of(store, ONE)
    code, request = REFUSALS[name]

    with pytest.raises(RefusedError) as refusal:
        request(store)

    assert code is refusal.value.code
    assert before == state_of(store, ONE)
    store.close()


def test_the_first_wrong_window_is_named(opened: ReplicaStore) -> None:
    """An operator who looks for a faulty host needs the place of the damage."""
    spoiled = A[:5000] + bytes([A[5000] ^ 1]) + A[5001:]

    with pytest.raises(RefusedError, match="block 11, chunk at 0: window 1 has CRC32C"):
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, spoiled)


class TestStates:
    """Which replicas may be written."""

    def test_a_closed_replica_is_not_written(self, opened: ReplicaStore) -> None:
        """
        After the close nothing is added, by neither request.
        """
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A)
        opened.close_container(ONE)

        for request in (
            lambda: opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A),
            lambda: opened.writer(ONE).put_block(BlockData(BLOCK, Bcsid(1), (CHUNK_A,))),
        ):
            with pytest.raises(RefusedError) as refusal:
                request()
            assert Code.CONTAINER_NOT_OPEN is refusal.value.code

    def test_a_reconstruction_is_written_like_an_open_replica(self, store: ReplicaStore) -> None:
        """
        RECOVERING is a state of writing, and ends in CLOSED.
        """
        store.create_container(ONE, replica_index=2, state=ReplicaState.RECOVERING)

        write_block(store, 1, 11)

        assert ReplicaState.CLOSED is store.close_container(ONE, bcsid=1).state

    def test_a_deleted_block_is_not_written_again(self, opened: ReplicaStore) -> None:
        """
        A tombstone that a replica brought with it holds while it is written, too.
        """
        index = opened.volume_set.places[ONE].index
        index.write(lambda rows: rows.put_tombstone(ONE, BLOCK, 5))

        for request in (
            lambda: opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A),
            lambda: opened.writer(ONE).put_block(BlockData(BLOCK, Bcsid(1))),
        ):
            with pytest.raises(RefusedError) as refusal:
                request()
            assert Code.NO_SUCH_BLOCK is refusal.value.code


def test_reading_is_bounded_by_what_is_recorded(opened: ReplicaStore) -> None:
    """Bytes behind the recorded end are not readable."""
    opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A)

    for offset, length_bytes in ((1, CHUNK_BYTES), (-1, 10), (0, 0), (CHUNK_BYTES, 1)):
        with pytest.raises(RefusedError) as refusal:
            opened.view(ONE).read(BLOCK, offset, length_bytes)
        assert Code.UNABLE_TO_FIND_CHUNK is refusal.value.code
    assert A[5:10] == opened.view(ONE).read(BLOCK, 5, 5)


def test_blocks_are_listed_in_pages(opened: ReplicaStore) -> None:
    """
    A listing continues where the last one ended.
    """
    for block_id in (5, 1, 3):
        write_block(opened, 1, block_id, chunk_count=1)

    assert [1, 3] == [block.block_id for block in opened.view(ONE).blocks(count=2)]
    assert [5] == [block.block_id for block in opened.view(ONE).blocks(start=4, count=2)]


def test_volume_written_by_clients_passes_fsck(tmp_path: Path) -> None:
    """Committed, uncommitted and empty blocks are verified, down to every byte."""
    store = open_store(tmp_path)
    store.create_container(ONE)
    write_block(store, 1, 11)
    store.writer(ONE).write_chunk(BlockId(12), chunk_of(A), A)
    store.writer(ONE).put_block(BlockData(BlockId(13), Bcsid(1)))
    store.close()

    report = fsck(tmp_path / "v0", read_data=True)

    assert () == report.problems
    assert (1, 2, 2, 1) == (
        report.replica_count,
        report.block_count,
        report.chunk_count,
        report.pending_chunk_count,
    )
    assert 3 * CHUNK_BYTES == report.bytes_read


def test_checksums_of_a_chunk_are_kept_as_given(opened: ReplicaStore) -> None:
    """
    The witness written with the data is stored as it came, whatever its windows.
    """
    chunk = chunk_of(A, checksum_type=ChecksumType.SHA256, bytes_per_checksum=1000)

    recorded: ChunkInfo = opened.writer(ONE).write_chunk(BLOCK, chunk, A)

    assert chunk == recorded
