"""Which keys need containers."""

import random

from hypothesis import given
from hypothesis import strategies as st

from scm.administration.affected_keys import keys_in
from scm.state.entities import Key, KeyBlock


def stored(name: str, *container_ids: int) -> Key:
    """A key with a block in each container."""
    return Key(name, 10, 1, tuple(KeyBlock(number, 1, 1, 10) for number in container_ids))


KEYS = st.dictionaries(st.text(max_size=3), st.sets(st.integers(1, 9), min_size=1), max_size=20)


@given(KEYS, st.sets(st.integers(1, 9)), st.integers(1, 5), st.integers(0, 2**32))
def test_pages_have_each_key_once_by_name(
    placed: dict[str, set[int]], asked: set[int], count: int, seed: int
) -> None:
    """
    All that have a block there and no other, whatever the pages; and how many there are.
    """
    keys = [stored(name, *numbers) for name, numbers in placed.items()]
    random.Random(seed).shuffle(keys)
    expected = {name: numbers & asked for name, numbers in placed.items() if numbers & asked}

    seen: list[tuple[str, frozenset[int]]] = []
    start_after, is_first = "", True
    while is_first or start_after:
        page = keys_in(keys, asked, start_after=start_after, count=count)
        is_first, start_after = False, page.next_start_after
        seen += [(one.name, one.container_ids) for one in page.keys]
        assert (len(expected), len(asked)) == (page.key_count, page.container_count)
        assert len(page.keys) <= count

    named = {name: numbers for name, numbers in expected.items() if name}  # no key has no name
    assert sorted(named.items()) == [(name, set(numbers)) for name, numbers in seen]
