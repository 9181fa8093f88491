"""New containers, and commits: what makes written chunks a block."""

from pathlib import Path

import pytest

from agent.store.replica_store import ReplicaStore
from merkle.replica import (
    ID_MAX,
    Bcsid,
    BlockData,
    BlockId,
    ContainerId,
)
from suture.errors import Code, RefusedError, UnavailableError
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


class TestPutBlock:
    """Commits."""

    def test_a_commit_counts_blocks_bytes_and_bcsid(self, opened: ReplicaStore) -> None:
        """
        The report follows from the commits.
        """
        write_block(opened, 1, 11, chunk_count=2, bcsid=7)
        write_block(opened, 1, 12, chunk_count=1, bcsid=5)

        facts = opened.replica(ONE)

        assert (2, 3 * CHUNK_BYTES, 7) == (facts.block_count, facts.used_bytes, facts.bcsid)

    def test_a_commit_with_the_chunk_is_the_same_as_one_after_it(
        self, opened: ReplicaStore
    ) -> None:
        """
        Both ways of committing leave the same rows.
        """
        block = BlockData(BLOCK, Bcsid(3), (CHUNK_A, CHUNK_B), (("key", "a"),))
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A)
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_B, B, commit=block)

        assert block == opened.view(ONE).block(BLOCK)
        assert (1, 2 * CHUNK_BYTES) == (
            opened.replica(ONE).block_count,
            opened.replica(ONE).used_bytes,
        )

    def test_the_same_commit_again_changes_nothing(self, opened: ReplicaStore) -> None:
        """
        A repeated commit is acknowledged with the same length.
        """
        block = write_block(opened, 1, 11)
        before = state_of(opened, ONE)

        length_bytes = opened.writer(ONE).put_block(block)

        assert block.length_bytes == length_bytes
        assert before == state_of(opened, ONE)

    def test_a_block_grows_by_later_commits(self, opened: ReplicaStore) -> None:
        """
        A commit of a part is final for that part, and more may follow.
        """
        opened.writer(ONE).write_chunk(
            BLOCK, CHUNK_A, A, commit=BlockData(BLOCK, Bcsid(1), (CHUNK_A,))
        )
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_B, B)

        length_bytes = opened.writer(ONE).put_block(BlockData(BLOCK, Bcsid(2), (CHUNK_A, CHUNK_B)))

        assert 2 * CHUNK_BYTES == length_bytes
        assert 1 == opened.replica(ONE).block_count

    def test_a_commit_of_a_part_leaves_the_rest_uncommitted(self, opened: ReplicaStore) -> None:
        """
        Chunks that the commit does not name stay written, readable and replaceable.
        """
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A)
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_B, B)

        opened.writer(ONE).put_block(BlockData(BLOCK, Bcsid(1), (CHUNK_A,)))

        assert CHUNK_BYTES == opened.view(ONE).block(BLOCK).length_bytes
        assert B == opened.view(ONE).read(BLOCK, CHUNK_BYTES, CHUNK_BYTES)

    def test_a_commit_may_leave_the_checksums_to_the_store(self, opened: ReplicaStore) -> None:
        """
        A client that gave no checksums with the data gives none with the commit.
        """
        recorded = opened.writer(ONE).write_chunk(BLOCK, bare_chunk(A), A)

        opened.writer(ONE).put_block(BlockData(BLOCK, Bcsid(1), (bare_chunk(A),)))

        assert (recorded,) == opened.view(ONE).block(BLOCK).chunks

    def test_a_block_without_chunks_is_a_block(self, opened: ReplicaStore) -> None:
        """
        An empty file's block is counted and listed, and needs no file.
        """
        opened.writer(ONE).put_block(BlockData(BLOCK, Bcsid(1)))

        assert 1 == opened.replica(ONE).block_count
        assert [BlockData(BLOCK, Bcsid(1))] == opened.view(ONE).blocks()

    def test_an_uncommitted_block_is_not_a_block(self, opened: ReplicaStore) -> None:
        """The error differs from that for an unknown block."""
        opened.writer(ONE).write_chunk(BLOCK, CHUNK_A, A)

        for block_id, code in ((BLOCK, Code.BLOCK_NOT_COMMITTED), (99, Code.NO_SUCH_BLOCK)):
            with pytest.raises(RefusedError) as refusal:
                opened.view(ONE).block(BlockId(block_id))
            assert code is refusal.value.code


class TestCreate:
    """New containers."""

    def test_creating_again_is_harmless_while_open(self, store: ReplicaStore) -> None:
        """
        A repeated create finds what the first one made.
        """
        first = store.create_container(ONE, replica_index=3)

        assert first == store.create_container(ONE, replica_index=3)

    def test_another_index_or_a_closed_one_is_refused(self, store: ReplicaStore) -> None:
        """
        Two different replicas of one container cannot be in one place.
        """
        store.create_container(ONE)

        with pytest.raises(RefusedError) as other_index:
            store.create_container(ONE, replica_index=1)
        store.close_container(ONE)
        with pytest.raises(RefusedError) as closed:
            store.create_container(ONE)

        assert Code.CONTAINER_EXISTS is other_index.value.code
        assert Code.CONTAINER_EXISTS is closed.value.code

    @pytest.mark.parametrize("container_id", [0, -1, ID_MAX + 1])
    def test_an_impossible_id_is_refused(self, store: ReplicaStore, container_id: int) -> None:
        """
        Ids are 1 to 2^63-1.
        """
        with pytest.raises(RefusedError) as refusal:
            store.create_container(ContainerId(container_id))

        assert Code.MALFORMED_REQUEST is refusal.value.code
        assert [] == store.replicas()

    def test_the_reserve_is_not_written_into(self, tmp_path: Path) -> None:
        """
        A disk that is full up to its reserve is full.
        """
        store = open_store(tmp_path, options=options_of_test(reserve_bytes=2**60))

        with pytest.raises(UnavailableError) as refusal:
            store.create_container(ONE)

        assert Code.DISK_OUT_OF_SPACE is refusal.value.code
        store.close()

    def test_the_reserve_is_kept_from_an_open_replica_too(self, tmp_path: Path) -> None:
        """
        A chunk that would need it is refused, and no byte of it is left.
        """
        store = open_store(tmp_path)
        store.create_container(ONE)
        store.close()
        store = open_store(tmp_path, options=options_of_test(reserve_bytes=2**60))
        data = content(1)

        with pytest.raises(UnavailableError) as refusal:
            store.writer(ONE).write_chunk(BlockId(1), chunk_of(data), data)

        assert Code.DISK_OUT_OF_SPACE is refusal.value.code
        assert [] == list(store.paths(ONE).chunks.iterdir())
        store.close()
