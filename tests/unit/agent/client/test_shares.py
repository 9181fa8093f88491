"""How work is divided among the sessions of a put."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.client.file_pieces import Source
from agent.client.shares import balanced


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
