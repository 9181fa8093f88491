"""The client's arithmetic: files into blocks and chunks, work into shares."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.client import BLOCK_BYTES_DEFAULT, Source, balanced, describe, piece_sizes, pieces_of
from agent.errors import Code, Refused
from merkle.replica import CHUNK_BYTES_DEFAULT


class TestPieces:
    @given(st.integers(0, 10 * BLOCK_BYTES_DEFAULT))
    def test_blocks_cover_a_file_exactly(self, size_bytes: int) -> None:
        """
        A file's blocks add up to it; only an empty file has an empty block.
        """
        sizes = piece_sizes(size_bytes)

        assert size_bytes == sum(sizes)
        assert all(sizes) or [0] == sizes
        assert max(sizes) <= BLOCK_BYTES_DEFAULT

    def test_a_file_that_shrank_is_refused(self) -> None:
        """
        A file that became shorter while it was written is an error, not a short block.
        """
        file = io.BytesIO(b"short")
        file.name = "short.txt"

        with pytest.raises(Refused) as caught:
            list(pieces_of(file, 100))

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


class TestBalanced:
    @given(st.lists(st.integers(0, 10**8), min_size=1, max_size=50), st.integers(1, 8))
    def test_every_file_is_in_one_share(self, sizes: list[int], count: int) -> None:
        """
        Shares hold every file once, are never empty, and never more than asked for.
        """
        sources = [Source(str(i), Path("x"), size) for i, size in enumerate(sizes)]

        shares = balanced(sources, count)

        assert sorted(s.key for s in sources) == sorted(s.key for share in shares for s in share)
        assert all(shares)
        assert len(shares) <= count
