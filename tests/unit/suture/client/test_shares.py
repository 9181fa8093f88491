"""How work is divided among the sessions of a put."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from suture.client.file_pieces import SourceFile, piece_count, pieces_of
from suture.client.session_pool import ALLOCATION_BATCH, balance_shares, batches
from suture.client.writer import ALLOCATION_BLOCKS_MAX


class TestBalanced:
    @given(st.lists(st.integers(0, 10**8), min_size=1, max_size=50), st.integers(1, 8))
    def test_every_file_is_in_one_share(self, sizes: list[int], count: int) -> None:
        """
        Shares hold every file once, are never empty, and never more than asked for.
        """
        sources = [SourceFile(str(i), Path("x"), size) for i, size in enumerate(sizes)]

        shares = balance_shares(sources, count)

        assert sorted(s.key for s in sources) == sorted(s.key for share in shares for s in share)
        assert all(shares)
        assert len(shares) <= count


class TestBatches:
    @given(st.lists(st.integers(0, 3 * ALLOCATION_BLOCKS_MAX), max_size=300))
    def test_a_batch_has_its_blocks_in_one_call(self, sizes: list[int]) -> None:
        """
        Every file is in one batch, in order; only a file with more blocks than a call is asked for
        has them in several, and is alone.
        """
        sources = [SourceFile(str(i), Path("x"), size) for i, size in enumerate(sizes)]

        found = list(batches(sources, 1))

        assert sources == [source for batch in found for source in batch]
        for batch in found:
            block_count = sum(piece_count(source, 1) for source in batch)
            assert 1 <= len(batch) <= ALLOCATION_BATCH
            assert block_count <= ALLOCATION_BLOCKS_MAX or len(batch) == 1

    def test_small_files_are_asked_for_together(self) -> None:
        """A request takes the number of files that a batch has, whatever their number of blocks
        up to the bound.
        """
        sources = [SourceFile(str(i), Path("x"), 10) for i in range(ALLOCATION_BATCH + 1)]

        assert [ALLOCATION_BATCH, 1] == [len(batch) for batch in batches(sources, 16 * 1024**2)]

    @given(st.integers(0, 100), st.integers(1, 20))
    def test_blocks_are_counted_as_they_are_made(self, size_bytes: int, block_bytes: int) -> None:
        """
        An empty file has one.
        """
        source = SourceFile("k", Path("x"), size_bytes)

        assert len(pieces_of(source, block_bytes)) == piece_count(source, block_bytes)
