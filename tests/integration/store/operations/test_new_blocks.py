"""Whole new blocks: committed together or not at all; what is refused leaves nothing behind."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from agent.store.files.directfile import BUFFER_BYTES
from agent.store.files.writebehind import SMALL_BYTES_MAX, Submit
from agent.store.recovery.fsck import fsck
from agent.store.replica_store import ReplicaStore
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from suture.errors import Code, RefusedError, SutureError
from tests.support.storage.stores import (
    CHUNK_BYTES,
    chunk_of,
    content,
    open_store,
    options_of_test,
    state_of,
)

ONE = ContainerId(1)
LARGE = SMALL_BYTES_MAX + 1


def block_of(block_id: int, *datas: bytes, bcsid: int = 0) -> tuple[BlockData, bytes]:
    """Describe a block as its writer would; return it with its data."""
    chunks: list[ChunkInfo] = []
    for data in datas:
        chunks.append(chunk_of(data, chunks[-1].end if chunks else 0))
    block = BlockData(BlockId(block_id), Bcsid(bcsid or block_id), tuple(chunks), (("key", "k"),))
    return block, b"".join(datas)


def write(
    store: ReplicaStore, *blocks: tuple[BlockData, bytes], submit: Submit | None = None
) -> int:
    """Write whole blocks in one call and one commit."""
    new = store.begin_blocks(ONE, submit)
    try:
        for block, data in blocks:
            new.add_chunks(block, memoryview(data), is_whole=True)
        return new.commit()
    finally:
        new.discard()


def left_beside(store: ReplicaStore) -> list[str]:
    """Return what lies where blocks are built."""
    return names_in(store.volume_set.working[0].layout.importing)


def names_in(directory: Path) -> list[str]:
    """Return the names of what is in a directory."""
    return [path.name for path in directory.iterdir()]


class TestTogether:
    def test_blocks_of_any_size_are_read_back(self, opened: ReplicaStore, tmp_path: Path) -> None:
        """
        Small ones, an empty one, ones written beside their place; each is in a file of its own.
        """
        sizes = [1, 0, 4_096, SMALL_BYTES_MAX, LARGE, 3 * SMALL_BYTES_MAX + 17]
        blocks = [
            block_of(number, *([content(number, size)] if size else []))
            for number, size in enumerate(sizes, 1)
        ]

        count = write(opened, *blocks)

        assert len(sizes) == count == opened.replica(ONE).block_count
        assert sum(sizes) == opened.replica(ONE).used_bytes
        assert len(sizes) == opened.replica(ONE).bcsid
        assert [block for block, _ in blocks] == opened.view(ONE).blocks()
        for block, data in blocks:
            path = opened.paths(ONE).block_file(block.block_id)
            assert (path.read_bytes() if data else b"") == data
        assert [] == left_beside(opened)
        opened.close()
        assert () == fsck(tmp_path / "v0", read_data=True).problems

    @pytest.mark.parametrize("is_beside", [False, True])
    def test_a_large_block_comes_chunk_by_chunk(self, tmp_path: Path, is_beside: bool) -> None:
        """
        Over several buffers, with a last chunk that fills no page, written beside or not.
        """
        store = open_store(tmp_path, options=options_of_test())
        store.create_container(ONE)
        datas = [
            content("a", BUFFER_BYTES),
            content("b", BUFFER_BYTES - 4_096),
            content("c", 9_001),
        ]
        block, data = block_of(5, *datas)

        with ThreadPoolExecutor(2) as pool:
            new = store.begin_blocks(ONE, pool.submit if is_beside else None)
            for number, (chunk, part) in enumerate(zip(block.chunks, datas, strict=True)):
                piece = replace(block, chunks=(chunk,))
                is_whole = number == len(datas) - 1
                new.add_chunks(piece, memoryview(part), is_whole=is_whole)
                assert (not is_whole) == new.is_cut_off
            assert 1 == new.commit()
            new.discard()

        assert block == store.view(ONE).block(BlockId(5))
        assert data == store.paths(ONE).block_file(BlockId(5)).read_bytes()
        store.close()

    def test_more_than_are_open_at_once(self, opened: ReplicaStore) -> None:
        """
        Files are written and synced a part at a time.
        """
        blocks = [block_of(number, content(number, 50)) for number in range(1, 150)]

        write(opened, *blocks)

        assert all(
            data == opened.view(ONE).read(block.block_id, 0, len(data)) for block, data in blocks
        )

    def test_the_same_again_is_acknowledged_again(self, opened: ReplicaStore) -> None:
        """
        A client whose acknowledgement got lost may repeat itself, whatever it adds.
        """
        first, second = block_of(1, content(1)), block_of(2, content(2, LARGE))
        write(opened, first, second)
        before = state_of(opened, ONE)

        assert 2 == write(opened, first, second)
        assert before == state_of(opened, ONE)

        assert 2 == write(opened, second, block_of(3, content(3)))
        assert 3 == opened.replica(ONE).block_count

    @pytest.mark.parametrize("size_bytes", [100, LARGE])
    def test_bytes_that_nobody_acknowledged_go(self, opened: ReplicaStore, size_bytes: int) -> None:
        """Bytes that a crash left in the place of a block never become part of it."""
        opened.paths(ONE).block_file(BlockId(1)).write_bytes(b"left by a crash" * 10_000)
        block, data = block_of(1, content(1, size_bytes))

        write(opened, (block, data))

        assert data == opened.paths(ONE).block_file(BlockId(1)).read_bytes()

    @pytest.mark.parametrize("size_bytes", [100, LARGE])
    def test_obstacle_in_the_place_of_a_new_block_is_put_aside(
        self, opened: ReplicaStore, tmp_path: Path, size_bytes: int
    ) -> None:
        """The obstacles are a hard link and a directory. Nothing is written through the link,
        and the content of the directory is kept.
        """
        precious = tmp_path / "precious"
        precious.write_bytes(b"precious")
        paths = opened.paths(ONE)
        paths.block_file(BlockId(1)).hardlink_to(precious)
        paths.block_file(BlockId(2)).mkdir()
        blocks = [block_of(number, content(number, size_bytes)) for number in (1, 2)]

        write(opened, *blocks)

        assert b"precious" == precious.read_bytes()
        for block, data in blocks:
            assert data == paths.block_file(block.block_id).read_bytes()

    def test_a_lost_directory_is_made_again(self, opened: ReplicaStore) -> None:
        """
        A replica can lose the directory of its blocks.
        """
        opened.paths(ONE).chunks.rmdir()

        write(opened, block_of(1, content(1)), block_of(2, content(2, LARGE)))

        assert content(1) == opened.view(ONE).read(BlockId(1), 0, CHUNK_BYTES)


WRONG = chunk_of(content("w"))._replace(window_checksums=chunk_of(content("x")).window_checksums)
NO_SUM = chunk_of(content("n"), checksum_type=ChecksumType.NONE)
Blocks = Sequence[tuple[BlockData, bytes]]
REFUSALS: dict[str, tuple[Code, Blocks]] = {
    "wrong checksum": (
        Code.CHECKSUM_MISMATCH,
        [block_of(4, content(4)), (replace(block_of(5)[0], chunks=(WRONG,)), content("w"))],
    ),
    "wrong checksum in a large one": (
        Code.CHECKSUM_MISMATCH,
        [
            (
                replace(
                    block_of(5, content(5, LARGE))[0],
                    chunks=(chunk_of(content(5, LARGE)), WRONG._replace(offset=LARGE)),
                ),
                content(5, LARGE) + content("w"),
            )
        ],
    ),
    "hole at the beginning": (
        Code.CHUNK_GAP,
        [(replace(block_of(5)[0], chunks=(chunk_of(content(5), 4_096),)), content(5))],
    ),
    "overlap": (
        Code.OVERLAPPING_CHUNK,
        [(replace(block_of(5)[0], chunks=(chunk_of(content(5)),) * 2), content(5) * 2)],
    ),
    "a block that is committed otherwise": (
        Code.OVERLAPPING_CHUNK,
        [block_of(4, content(4)), block_of(1, content("other"))],
    ),
    "a large block that is committed otherwise": (
        Code.OVERLAPPING_CHUNK,
        [block_of(4, content(4)), block_of(1, content("other", LARGE))],
    ),
    "a block with an uncommitted chunk": (Code.OVERLAPPING_CHUNK, [block_of(2, content("b"))]),
    "a committed block that has no checksums": (
        Code.OVERLAPPING_CHUNK,
        [(BlockData(BlockId(3), Bcsid(3), (NO_SUM,)), content("n"))],
    ),
    "the same block twice": (
        Code.MALFORMED_REQUEST,
        [block_of(5, content(5)), block_of(5, content(5))],
    ),
    "block id 0": (Code.MALFORMED_REQUEST, [block_of(0, content(5), bcsid=1)]),
    "container full": (
        Code.INVALID_WRITE_SIZE,
        [block_of(number, content(number, 40_000)) for number in range(5, 9)],
    ),
    "too much metadata": (
        Code.MALFORMED_REQUEST,
        [(replace(block_of(5, content(5))[0], metadata=(("k", "v" * 70_000),)), content(5))],
    ),
}


class TestRefusals:
    @pytest.fixture
    def filled(self, tmp_path: Path) -> ReplicaStore:
        """A store whose container has room for some 100,000 bytes, and three blocks: one is
        committed, one is not, one has no checksums."""
        store = open_store(tmp_path, options=options_of_test(container_bytes_max=140_000))
        store.create_container(ONE)
        write(store, block_of(1, content("a")))
        store.writer(ONE).write_chunk(BlockId(2), chunk_of(content("b")), content("b"))
        block = BlockData(BlockId(3), Bcsid(3), (NO_SUM,))
        store.writer(ONE).write_chunk(BlockId(3), NO_SUM, content("n"), commit=block)
        return store

    @pytest.mark.parametrize("name", REFUSALS)
    def test_a_refusal_changes_nothing(self, filled: ReplicaStore, name: str) -> None:
        """A refusal leaves no file, no row and nothing else."""
        code, blocks = REFUSALS[name]
        before = state_of(filled, ONE)

        with pytest.raises(RefusedError) as refusal:
            write(filled, *blocks)

        assert code is refusal.value.code
        assert before == state_of(filled, ONE)
        assert [] == left_beside(filled)
        filled.close()

    def test_a_block_must_be_whole_before_the_next(self, opened: ReplicaStore) -> None:
        """The bytes sent are removed when the call ends."""
        block, data = block_of(1, content(1))
        new = opened.begin_blocks(ONE)
        new.add_chunks(block, memoryview(data), is_whole=False)
        assert 1 == len(left_beside(opened))

        with pytest.raises(RefusedError, match="before block 1 is complete"):
            new.add_chunks(block_of(2)[0], memoryview(b""), is_whole=True)
        new.discard()

        assert [] == left_beside(opened)
        assert [] == opened.view(ONE).blocks()

    @pytest.mark.parametrize("when", ["begun", "written"])
    def test_a_closed_container_takes_none(self, opened: ReplicaStore, when: str) -> None:
        """The blocks are refused even if the container was closed while they arrived."""
        close: Callable[[], object] = lambda: opened.close_container(ONE, force=True)  # noqa: E731
        if when == "begun":
            close()
            with pytest.raises(RefusedError) as refusal:
                opened.begin_blocks(ONE)
        else:
            new = opened.begin_blocks(ONE)
            for block, data in (block_of(1, content(1)), block_of(2, content(2, LARGE))):
                new.add_chunks(block, memoryview(data), is_whole=True)
            close()
            with pytest.raises(RefusedError) as refusal:
                new.commit()
            new.discard()

        assert Code.CONTAINER_NOT_OPEN is refusal.value.code
        assert (
            []
            == opened.view(ONE).blocks()
            == left_beside(opened)
            == names_in(opened.paths(ONE).chunks)
        )

    def test_the_reserve_is_not_written_into(self, tmp_path: Path) -> None:
        """
        A volume without room beside its reserve takes neither small nor large blocks.
        """
        store = open_store(tmp_path)
        store.create_container(ONE)
        store.close()
        store = open_store(tmp_path, options=options_of_test(reserve_bytes=2**62))

        for block in (block_of(1, content(1)), block_of(1, content(1, LARGE))):
            with pytest.raises(SutureError) as refusal:
                write(store, block)
            assert Code.DISK_OUT_OF_SPACE is refusal.value.code
        assert (
            []
            == store.view(ONE).blocks()
            == left_beside(store)
            == names_in(store.paths(ONE).chunks)
        )
        store.close()
