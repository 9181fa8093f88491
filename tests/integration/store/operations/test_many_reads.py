"""Several places of one block's file are read by opening it once: each is as if read by itself."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.store.files import blockfile
from agent.store.index.rows import InstallEntry
from agent.store.operations import reading
from agent.store.operations.batch_repair import OfferedChunk
from agent.store.operations.overwrite import check_arrived
from agent.store.replica_store import ReplicaStore
from merkle.blockrow import encode_block
from merkle.checksum import crc32c
from merkle.replica import Bcsid, BlockData, BlockId, ContainerId
from suture.errors import BlockFailed, SutureError, VolumeFailed
from tests.support.storage.stores import (
    CHUNK_BYTES,
    check_clean,
    chunk_of,
    closed_replica,
    content,
    flip_bit,
    open_store,
    quarantined,
)

ONE = ContainerId(1)
BLOCK = BlockId(2)
PIECES = (content((2, 0)), content((2, 1)))
SPANS = ((0, CHUNK_BYTES), (CHUNK_BYTES, CHUNK_BYTES), (4 * CHUNK_BYTES, 10))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    """A store with a closed container 1 of blocks 1, 2 and 3, two chunks each."""
    opened = open_store(tmp_path)
    closed_replica(opened)
    yield opened
    opened.close()


def unreadable_at(bad_offset: int) -> Callable[[int, memoryview, int, int], memoryview]:
    """Return a read of which one place of the medium gives nothing back."""
    real = blockfile._read_aligned

    def read(fd: int, memory: memoryview, offset: int, length_bytes: int) -> memoryview:
        if offset == bad_offset:
            raise OSError(errno.EIO, "no such sector")
        return real(fd, memory, offset, length_bytes)

    return read


@pytest.fixture
def a_bad_sector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the second chunk of every file be unreadable, past the cache and in it."""
    monkeypatch.setattr(blockfile, "_read_aligned", unreadable_at(CHUNK_BYTES))

    def refuse(_path: Path, offset: int, _length_bytes: int) -> bytes:
        raise OSError(errno.EIO, "no such sector", str(offset))

    monkeypatch.setattr(blockfile, "_read_after_drop", refuse)


def entries() -> list[InstallEntry]:
    """Return entries of the journal for both chunks of the block."""
    return [
        InstallEntry(
            BLOCK, chunk_of(data, number * CHUNK_BYTES), crc32c(data), 0, "", pending=False
        )
        for number, data in enumerate(PIECES)
    ]


def test_read_of_several_places_returns_each_ones_bytes(store: ReplicaStore) -> None:
    """A place behind the end of the file gives no bytes, and a missing file gives None for each
    place.
    """
    path = store.paths(ONE).block_file(BLOCK)

    assert [*PIECES, b""] == blockfile.read_each_past_cache(path, SPANS)
    assert [PIECES[1]] == blockfile.read_each_past_cache(path, SPANS[1:2])
    assert [] == blockfile.read_each_past_cache(path, [])
    missing = path.with_name("99.block")
    assert [None, None, None] == blockfile.read_each_past_cache(missing, SPANS)


@pytest.mark.usefixtures("a_bad_sector")
def test_a_bad_sector_costs_its_chunk_only(store: ReplicaStore) -> None:
    """An unreadable chunk does not affect the rest of its file."""
    path = store.paths(ONE).block_file(BLOCK)
    chunks = [entry.chunk for entry in entries()]

    assert [PIECES[0], None] == blockfile.read_each_past_cache(path, SPANS[:2])
    assert [PIECES[0], b""] == store.repair(ONE).read_medium_many(BLOCK, chunks)


@pytest.mark.parametrize("number", [0, 1])
def test_piece_that_did_not_arrive_is_named(store: ReplicaStore, number: int) -> None:
    """All pieces written to a file are checked, not only the first."""
    path = store.paths(ONE).block_file(BLOCK)
    check_arrived(path, entries())
    flip_bit(path, number * CHUNK_BYTES + 5)

    with pytest.raises(BlockFailed, match=f"at {number * CHUNK_BYTES} read back differ"):
        check_arrived(path, entries())


def test_piece_behind_the_end_of_the_file_did_not_arrive(store: ReplicaStore) -> None:
    """Half of a chunk counts as missing."""
    path = store.paths(ONE).block_file(BLOCK)
    path.write_bytes(PIECES[0] + PIECES[1][:-1])

    with pytest.raises(BlockFailed, match=f"at {CHUNK_BYTES} read back differ"):
        check_arrived(path, entries())


@pytest.mark.usefixtures("a_bad_sector")
def test_unreadable_piece_did_not_arrive(store: ReplicaStore) -> None:
    """The error has the reason."""
    path = store.paths(ONE).block_file(BLOCK)

    with pytest.raises(BlockFailed, match="no such sector"):
        check_arrived(path, entries())


def test_a_host_without_descriptors_is_no_disk_that_lost_them(
    store: ReplicaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes may be written, so no error of the medium is reported."""
    path = store.paths(ONE).block_file(BLOCK)

    def none_left(_path: Path, _flags: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(blockfile, "_open", none_left)
    with pytest.raises(SutureError) as short:
        check_arrived(path, entries())

    assert not isinstance(short.value, VolumeFailed)


def test_the_file_is_opened_once(store: ReplicaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Each call of the system lets go of the interpreter, which is what many chunks wait for.
    """
    real, opened = blockfile._open, list[Path]()

    def counting(path: Path, flags: int) -> int:
        opened.append(path)
        return real(path, flags)

    monkeypatch.setattr(blockfile, "_open", counting)
    path = store.paths(ONE).block_file(BLOCK)
    blockfile.read_each_past_cache(path, SPANS)

    assert [path] == opened


def test_an_offer_of_more_than_came_is_not_read_for(store: ReplicaStore) -> None:
    """
    The length is a peer's word: no memory is taken for it.
    """
    flip_bit(store.paths(ONE).block_file(BLOCK), CHUNK_BYTES + 3)
    whole = entries()[1].chunk
    endless = OfferedChunk(BLOCK, whole._replace(length_bytes=2**62), PIECES[1])

    assert frozenset({1}) == store.install_chunks(
        ONE, [endless, OfferedChunk(BLOCK, whole, PIECES[1])]
    )


def test_a_lender_that_has_fewer_chunks_lends_its_commit_id(store: ReplicaStore) -> None:
    """
    Each chunk that it has is here; that there is another one makes no difference.
    """
    flip_bit(store.paths(ONE).block_file(BLOCK), 3)
    first = entries()[0].chunk
    later = Bcsid(store.view(ONE).block(BLOCK).bcsid + 1)
    lent = BlockData(BLOCK, later, (first,))

    assert frozenset({0}) == store.install_chunks(
        ONE, [OfferedChunk(BLOCK, first, PIECES[0], lent=lent)]
    )
    assert later == store.view(ONE).block(BLOCK).bcsid
    assert 2 == len(store.view(ONE).block(BLOCK).chunks)


def test_rows_that_were_damaged_are_counted_again_once_and_claim_no_commit(
    tmp_path: Path, store: ReplicaStore
) -> None:
    """Blocks and bytes are those of the rows in the end. A block of a later commit does not
    prove the other blocks, so the replica's own commit id stays.
    """
    before = store.replica(ONE)
    index = store.volume_set.places[ONE].index
    for block_id in (BlockId(1), BLOCK):
        flip_bit(store.paths(ONE).block_file(block_id), 3)
        index.write(lambda rows, block_id=block_id: rows.put_block(ONE, block_id, b"nonsense"))
    offers = [
        OfferedChunk(
            block_id,
            chunk_of(content((block_id, number)), number * CHUNK_BYTES),
            content((block_id, number)),
            lent=BlockData(
                block_id,
                Bcsid(before.bcsid + 9),
                tuple(chunk_of(content((block_id, at)), at * CHUNK_BYTES) for at in range(2)),
            ),
            proof="dn2",
        )
        for block_id in (BlockId(1), BLOCK)
        for number in range(2)
    ]
    installed = store.install_chunks(ONE, offers)

    assert frozenset(range(4)) == installed
    after = store.replica(ONE)
    assert (before.block_count, before.used_bytes) == (after.block_count, after.used_bytes)
    assert before.bcsid == after.bcsid
    assert before.bcsid + 9 == store.view(ONE).block(BLOCK).bcsid
    assert len(quarantined(tmp_path)) == 4
    check_clean(store, tmp_path)


def test_row_of_usual_size_is_decoded_once_until_it_changes(
    store: ReplicaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer row is decoded at each read, because its chunks need much memory."""
    reading.decode_again.cache_clear()
    monkeypatch.setattr(reading, "KEPT_ROW_BYTES_MAX", 0)
    first = store.view(ONE).block(BLOCK)
    assert 0 == reading.decode_again.cache_info().currsize
    monkeypatch.undo()

    assert first == store.view(ONE).block(BLOCK)
    assert store.view(ONE).block(BLOCK) is store.view(ONE).block(BLOCK)
    changed = replace(first, metadata=(("name", "other"),))
    with store.view(ONE).volume.index.read() as rows:
        assert rows.block(ONE, BLOCK) == encode_block(first)
    store.view(ONE).volume.index.write(
        lambda rows: rows.put_block(ONE, BLOCK, encode_block(changed))
    )
    assert changed == store.view(ONE).block(BLOCK)
