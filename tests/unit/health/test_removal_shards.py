"""Which shard gives way, and which may go, when it is excluded or has more than its container."""

from dataclasses import replace

import pytest

from tests.support.control.judged_case import victims
from tests.support.control.judged_container import JudgedContainer
from tests.support.control.judged_removals import giving_way, may_remove_shard
from tests.support.control.replica_words import shards


def given_way(given: JudgedContainer) -> str:
    """Return which replica gives way; empty: none."""
    found = giving_way(given)
    return "" if found is None else found.datanode_id


@pytest.mark.parametrize(
    ("words", "excluded", "expected"),
    [
        ("C#1 C#2 C#3 C#4 U#5", {"dn5"}, ""),
        ("C#1 C#2 C#3 C#4 U#5 U#5", {"dn5"}, "dn6"),
        ("C#1 C#2 C#3 C#4 C#4", {"dn5"}, "dn4"),
        ("C#1 C#2 C#3 C#4 C#4", {"dn4", "dn5"}, ""),
    ],
)
def test_excluded_shard_is_not_deleted_to_make_room(
    words: str, excluded: set[str], expected: str
) -> None:
    """The shard is excluded by an operator, or because its datanode is not managed."""
    assert expected == given_way(replace(shards(words), excluded=frozenset(excluded)))


@pytest.mark.parametrize(
    ("words", "may_go"),
    [
        ("C@6#1 C#2 C#3 C#4 C#5 U@6#1", True),
        ("C@6#1 C#2 C#3 C#4 C#5 U@7#1", False),
        ("C#1 C#2 C#3 C#4 C#5 U@6#1", False),
        ("C#1 C@6#2 C#3 C#4 C#5 U@6#1", False),  # another index tells nothing of its commits
    ],
)
def test_a_bad_shard_goes_if_a_whole_one_of_its_index_has_its_commits(
    words: str, may_go: bool
) -> None:
    """Its container has 5: it was closed without the last, because it was not there."""
    given = shards(words)

    assert (["dn6"] if may_go else []) == [p.datanode_id for p in victims(given)]
    assert may_go is may_remove_shard(given, "dn6")
    assert ("dn6" if may_go else "") == given_way(given)
