"""The index of the blocks that keys name: equal to a search of all keys, and built once."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scm.state.entities import Key, KeyBlock
from scm.state.tables import key_table
from scm.state.tables.key_table import KeyTable
from scm.state.tables.named_blocks import NamedBlocks

NUMBERS = st.sampled_from([1, 2, 255, 256, 2**32, 2**63 - 1])
PLACES = st.tuples(NUMBERS, NUMBERS)
KEYS = st.builds(
    lambda name, places: Key(name, 1, 1, tuple(KeyBlock(a, b, 5, 1) for a, b in places)),
    st.sampled_from("abc"),
    st.lists(PLACES, max_size=3),
)


@given(st.lists(st.tuples(st.booleans(), KEYS)), st.lists(PLACES))
def test_index_finds_the_blocks_that_a_search_of_all_keys_finds(
    changes: list[tuple[bool, Key]], asked: list[tuple[int, int]]
) -> None:
    """Also after keys were set, replaced and removed, and if two keys name one block."""
    keys = KeyTable()
    for is_set, key in changes:
        keys.apply(key.name, key if is_set else None)

        named = {(one.container_id, one.local_id) for k in keys.values() for one in k.blocks}
        assert named.intersection(asked) == keys.named_among(asked)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of keys read for each index."""
    counts: list[int] = []

    class Counted(NamedBlocks):
        def __init__(self, keys: Iterable[Key]) -> None:
            read = list(keys)
            counts.append(len(read))
            super().__init__(read)

    monkeypatch.setattr(key_table, "NamedBlocks", Counted)
    return counts


def test_keys_are_read_once_for_many_lookups(built: list[int]) -> None:
    """The time of a recovery in many calls would otherwise grow with the square of the keys."""
    keys = KeyTable()
    for number in range(10):
        keys.named_among([(1, number)])
        keys.apply(str(number), Key(str(number), 1, 1, (KeyBlock(1, number, 5, 1),)))

    assert {(1, 9)} == keys.named_among([(1, 9), (1, 10)])
    assert [0] == built
    keys.forget_named()
    assert {(1, 9)} == keys.named_among([(1, 9), (1, 10)])
    assert [0, 10] == built


def test_index_with_too_many_changes_is_replaced(
    built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory for changes is bounded."""
    monkeypatch.setattr("scm.state.tables.named_blocks.CHANGES_MAX", 2)
    keys = KeyTable()
    for number in range(4):
        keys.named_among([(1, number)])
        keys.apply(str(number), Key(str(number), 1, 1, (KeyBlock(1, number, 5, 1),)))

    assert {(1, 3)} == keys.named_among([(1, 3)])
    assert [0, 3] == built
