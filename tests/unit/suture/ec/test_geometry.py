"""Where the bytes of a block group are."""

import pytest

from suture.ec.geometry import BlockGroup, CellSpan
from suture.ec.scheme import RS_3_2, Scheme
from suture.errors import RefusedError
from tests.support.storage.ec_groups import SMALL_SCHEMES, encoded_group, lengths_bytes

SMALL = SMALL_SCHEMES[0]  # rs-3-2, cells of 512 bytes


class TestCells:
    def test_the_last_stripe_of_a_group_is_partial(self) -> None:
        """
        Ten cells less a part of one: the last stripe has one short cell and parity as short.
        """
        group = BlockGroup(SMALL, 9 * 512 + 100)

        lengths = [[group.cell_bytes(s, i) for i in SMALL.indexes] for s in range(5)]

        full = [512] * 5
        assert [full, full, full, [100, 0, 0, 100, 100], [0] * 5] == lengths
        assert 4 == group.stripe_count

    def test_parity_is_as_long_as_the_longest_data_cell(self) -> None:
        """
        A second cell that is short does not shorten parity.
        """
        group = BlockGroup(SMALL, 512 + 7)

        assert [512, 7, 0, 512, 512] == [group.cell_bytes(0, i) for i in SMALL.indexes]
        assert (1, 2, 4, 5) == group.indexes(0)

    @pytest.mark.parametrize("scheme", SMALL_SCHEMES, ids=str)
    def test_shards_are_the_sum_of_their_cells(self, scheme: Scheme) -> None:
        """
        A shard is as long as its cells together; the data shards together are the group.
        """
        for length_bytes in lengths_bytes(scheme).values():
            group = BlockGroup(scheme, length_bytes)
            for index in scheme.indexes:
                cells = [group.cell_bytes(s, index) for s in range(group.stripe_count)]
                assert sum(cells) == group.shard_bytes(index)
            data = range(1, scheme.data_count + 1)
            assert length_bytes == sum(group.shard_bytes(index) for index in data)

    def test_an_empty_group_has_no_cells(self) -> None:
        """
        A group without data has no stripe, and every shard is empty.
        """
        group = BlockGroup(SMALL, 0)

        assert 0 == group.stripe_count
        assert [0] * 5 == [group.shard_bytes(index) for index in SMALL.indexes]


class TestSpans:
    def test_a_range_is_found_cell_by_cell(self) -> None:
        """
        A range over the end of a stripe is in two cells of two stripes.
        """
        group = BlockGroup(SMALL, 4 * 512)

        assert [CellSpan(0, 3, 500, 12), CellSpan(1, 1, 0, 8)] == list(group.spans(1524, 20))

    @pytest.mark.parametrize("scheme", SMALL_SCHEMES, ids=str)
    def test_spans_of_the_whole_group_give_its_data(self, scheme: Scheme) -> None:
        """The spans are read in order from the cells of the group."""
        for length_bytes in lengths_bytes(scheme).values():
            made = encoded_group(scheme, length_bytes)

            found = b"".join(
                made.stripes[span.stripe][span.index][span.offset :][: span.length_bytes]
                for span in made.group.spans(0, length_bytes)
            )

            assert made.data == found

    def test_span_is_cut_at_the_end_of_the_group(self) -> None:
        """A range beyond the end has no further span."""
        assert [CellSpan(0, 1, 90, 10)] == list(BlockGroup(SMALL, 100).spans(90, 500))


class TestRefusals:
    def test_more_stripes_than_a_block_has_chunks(self) -> None:
        """
        A group whose shards could not be written as blocks is refused.
        """
        with pytest.raises(RefusedError, match="65536 stripes"):
            BlockGroup(SMALL, 65_536 * SMALL.stripe_bytes)

    def test_a_length_below_zero(self) -> None:
        """
        A length that cannot be is refused.
        """
        with pytest.raises(RefusedError, match="-1 bytes"):
            BlockGroup(RS_3_2, -1)
