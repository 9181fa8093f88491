"""Groups of what one call gets."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from suture.wire.clients.message_groups import GROUP_BYTES_MAX, GROUP_COUNT_MAX, grouped

SIZES = st.lists(st.integers(0, 2 * GROUP_BYTES_MAX), max_size=200)


@given(SIZES)
@example([1] * (GROUP_COUNT_MAX + 1))
@example([GROUP_BYTES_MAX // 2] * 3)
def test_message_groups_are_as_full_as_possible(sizes: list[int]) -> None:
    """No item is lost or reordered, and only an item that is too large by itself exceeds a
    message.
    """
    groups = list(grouped(sizes, int))

    assert sizes == [size for group in groups for size in group]
    for group in groups:
        assert 0 < len(group) <= GROUP_COUNT_MAX
        assert len(group) == 1 or sum(group) <= GROUP_BYTES_MAX
    for group, following in pairwise(groups):
        is_full = len(group) == GROUP_COUNT_MAX
        assert is_full or sum(group) + following[0] > GROUP_BYTES_MAX
