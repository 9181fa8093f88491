"""What a repair must never do, however the medium, the index or a peer behaves."""

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agent.store.files import blockfile
from agent.store.operations import repair
from agent.store.operations.repair import ReplicaRepair
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from suture.errors import Code, RefusedError, UnavailableError, VolumeFailed
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import CHUNK_BYTES, closed_replica, content, flip_bit

ONE = ContainerId(1)
BLOCK = BlockId(2)
FIRST, SECOND = content((2, 0)), content((2, 1))


def journal(store: ReplicaStore) -> list[object]:
    """Return the unfinished work of container 1."""
    with store.volume_set.places[ONE].index.read() as rows:
        return list(rows.journal(ONE))


@pytest.fixture
def blocks(store: ReplicaStore) -> dict[int, BlockData]:
    """The blocks of a closed container 1: 1, 2 and 3, of two chunks each."""
    return closed_replica(store)


def forgetful(path: Path, pieces: Sequence[tuple[int, bytes]], **_: object) -> None:
    """Write as a medium does that loses the end of what it acknowledged."""
    with path.open("r+b") as file:
        for offset, data in pieces:
            file.seek(offset)
            file.write(data[:-1] + bytes([data[-1] ^ 1]))


def test_bytes_that_do_not_arrive_are_taken_back(
    store: ReplicaStore, blocks: dict[int, BlockData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes read back are compared with those written, and the old bytes are restored."""
    path = store.paths(ONE).block_file(BLOCK)
    flip_bit(path, CHUNK_BYTES + 5)
    before = path.read_bytes()
    real, writes = blockfile.overwrite_pieces, [forgetful]
    monkeypatch.setattr(
        blockfile,
        "overwrite_pieces",
        lambda path, pieces, **how: (writes.pop() if writes else real)(path, pieces, **how),
    )

    with pytest.raises(VolumeFailed, match="read back differ"):
        store.repair(ONE).install_chunk(BLOCK, blocks[2].chunks[1], SECOND)

    assert before == path.read_bytes()
    assert [] == journal(store)


def test_an_index_that_cannot_record_the_new_bytes_gets_the_old_ones_back(
    store: ReplicaStore, blocks: dict[int, BlockData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A refused write changes nothing, not even until the next start.
    """
    path = store.paths(ONE).block_file(BLOCK)
    flip_bit(path, CHUNK_BYTES + 5)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise UnavailableError(Code.DISK_OUT_OF_SPACE, "no room in the index")

    monkeypatch.setattr(repair, "record_chunk", full)
    with pytest.raises(UnavailableError):
        store.repair(ONE).install_chunk(BLOCK, blocks[2].chunks[1], SECOND)

    assert before == path.read_bytes()
    assert [] == journal(store)


@pytest.mark.parametrize(
    "step",
    [
        lambda mend, chunk: mend.install_chunk(BLOCK, chunk, FIRST),
        lambda mend, chunk: mend.salvage_chunk(BLOCK, chunk),
        lambda mend, _chunk: mend.install_empty_block(BLOCK),
    ],
    ids=["install", "salvage", "empty"],
)
def test_a_deleted_block_is_not_brought_back(
    store: ReplicaStore,
    blocks: dict[int, BlockData],
    step: Callable[[ReplicaRepair, ChunkInfo], object],
) -> None:
    """The peer that offers it has not executed the delete yet."""
    remove_blocks(store, ONE, [BLOCK])

    with pytest.raises(RefusedError) as caught:
        step(store.repair(ONE), blocks[2].chunks[0])

    assert Code.NO_SUCH_BLOCK == caught.value.code
    assert BLOCK not in [block.block_id for block in store.view(ONE).blocks()]


class TestLongPieces:
    """Long pieces are written past the page cache if they are aligned."""

    LONG = blockfile.DIRECT_BYTES_MIN
    PIECES = (
        (0, b"a" * LONG),
        (LONG, b"b" * (LONG + 1)),  # the length is not aligned
        (2 * LONG + 1, b"c" * LONG),  # the offset is not aligned
        (LONG, b"d" * 4096),  # short
        (0, b"e" * (LONG - 4096)),  # just too short
        (4096, b"f" * LONG),
    )

    @pytest.fixture
    def direct(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
        """The offsets and lengths of the writes past the page cache."""
        written: list[tuple[int, int]] = []
        real = os.pwrite

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                written.append((offset, len(data)))
            return real(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", pwrite)
        return written

    def expected(self) -> bytes:
        """Return the content after all pieces, by a plain write of each."""
        content = bytearray(3 * self.LONG + 1)
        for offset, data in self.PIECES:
            content[offset : offset + len(data)] = data
        return bytes(content)

    def test_pieces_of_every_alignment_are_written(
        self, tmp_path: Path, direct: list[tuple[int, int]]
    ) -> None:
        """One piece past the page cache does not make the next one of another alignment fail."""
        path = tmp_path / "1.block"

        blockfile.overwrite_pieces(path, self.PIECES)

        assert self.expected() == path.read_bytes()
        assert [(0, self.LONG), (4096, self.LONG)] == direct

    @pytest.mark.parametrize("answer", [errno.EINVAL, 4096])
    def test_piece_that_the_file_system_refuses_is_written_through_the_cache(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int
    ) -> None:
        """Some file systems refuse O_DIRECT only at the write, or write a part of the piece."""
        real = os.pwrite

        def refuse(fd: int, data: bytes, offset: int) -> int:
            if not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                return real(fd, data, offset)
            if answer == errno.EINVAL:
                raise OSError(answer, os.strerror(answer))
            return real(fd, memoryview(data)[:answer], offset)

        monkeypatch.setattr(os, "pwrite", refuse)
        path = tmp_path / "1.block"

        blockfile.overwrite_pieces(path, self.PIECES)

        assert self.expected() == path.read_bytes()

    def test_error_of_the_disk_is_not_hidden(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A write through the page cache would report it later or never."""

        real = os.pwrite

        def fail(fd: int, data: bytes, offset: int) -> int:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", fail)

        with pytest.raises(OSError, match="Input/output error"):
            blockfile.overwrite_pieces(tmp_path / "1.block", self.PIECES[:1])
