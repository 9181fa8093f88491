"""Shards on nodes that leave or rest: which are copied, and when the nodes may go."""

from dataclasses import replace

import pytest

from scm.replication import Case
from scm.shards import may_do_without, to_copy
from tests.support.replica_words import case
from tests.support.scm_world import container


def shards(words: str) -> Case:
    """Read `C#1 C#2/d`: replicas of an RS(3,2) container with their indexes."""
    pairs = [word.partition("#") for word in words.split()]
    plain = case(" ".join(state + rest[1:] for state, _, rest in pairs))
    placed = tuple(
        replace(p, replica=replace(p.replica, replica_index=int(rest[0])))
        for p, (_state, _, rest) in zip(plain.placed, pairs, strict=True)
    )
    ec = replace(container(replication_factor=5), scheme="rs-3-2-1024k")
    return replace(plain, container=ec, placed=placed)


@pytest.mark.parametrize(
    ("row", "words", "copied", "may_go"),
    [
        ("V58", "C#1 C#2 C#3 C#4 C#5", [], True),
        ("V61", "C#1 C#2 C#3 C#4/d C#5/D", [4, 5], False),
        ("copied", "C#1 C#2 C#3 C#4/d C#5/D C#4 C#5", [], True),
        ("lost, not leaving", "C#1 C#2 C#3 C#4", [], False),
        ("one rests", "C#1 C#2 C#3 C#4 C#5/e", [], True),
        ("two rest: one copy keeps four online", "C#1 C#2 C#3 C#4/e C#5/e", [4], False),
        ("a leaving one that died is rebuilt", "C#1 C#2 C#3 C#4 C#5/d!", [], False),
        ("an unhealthy one is no copy", "C#1 C#2 C#3 C#4 C#5/d U#5", [5], False),
        ("leaving and resting: a copy of the leaving one", "C#1/d C#2 C#3 C#4 C#5/e", [1], False),
    ],
)
def test_what_is_about_to_go_is_copied_once_per_index(
    row: str, words: str, copied: list[int], may_go: bool
) -> None:
    """Reading needs three of five; one more stays online."""
    given = shards(words)

    assert copied == [p.replica.replica_index for p in to_copy(given)], row
    assert may_go is may_do_without(given), row
