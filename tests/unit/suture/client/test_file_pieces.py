"""The writer's arithmetic: files into blocks and chunks."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merkle.replica import CHUNK_BYTES_DEFAULT
from suture.client.file_pieces import (
    BLOCK_BYTES_DEFAULT,
    SourceFile,
    chunks_of,
    describe,
    pieces_of,
)
from suture.errors import Code, RefusedError


class TestPieces:
    @given(st.integers(0, 10 * BLOCK_BYTES_DEFAULT))
    def test_blocks_cover_a_file_exactly(self, size_bytes: int) -> None:
        """
        A file's blocks add up to it; only an empty file has an empty block.
        """
        pieces = pieces_of(SourceFile("key", Path("x"), size_bytes))

        sizes = [piece.size_bytes for piece in pieces]
        assert size_bytes == sum(sizes)
        assert all(sizes) or [0] == sizes
        assert max(sizes) <= BLOCK_BYTES_DEFAULT
        assert list(range(len(sizes))) == [piece.part for piece in pieces]

    def test_a_file_that_shrank_is_refused(self, tmp_path: Path) -> None:
        """
        A file that became shorter since it was listed is an error, not a short block.
        """
        path = tmp_path / "short.txt"
        path.write_bytes(b"short")
        [piece] = pieces_of(SourceFile("key", path, 100))

        with pytest.raises(RefusedError, match="95 bytes shorter") as caught:
            list(chunks_of(piece))

        assert Code.INVALID_WRITE_SIZE == caught.value.code

    def test_a_chunk_is_described_by_its_windows(self) -> None:
        """
        The description has one checksum of four bytes per started window of 16 KiB.
        """
        chunk = describe(CHUNK_BYTES_DEFAULT, b"x" * (16 * 1024 + 1))

        assert (CHUNK_BYTES_DEFAULT, 16 * 1024 + 1, 8) == (
            chunk.offset,
            chunk.length_bytes,
            len(chunk.window_checksums),
        )
