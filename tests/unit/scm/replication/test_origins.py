"""Before a replica of a quasi-closed container goes: enough of its origin stay, equal to it."""

from dataclasses import replace
from typing import Any

import pytest

from scm.cluster.case import Case
from scm.replication.guards.origins import may_be_removed, origins
from scm.state.facts import ContainerState, Health, OpState
from tests.support.control.replica_words import case, changed
from tests.support.control.scm_world import container, summary


def quasi(words: str, origins: str, **more: Any) -> Case:
    """Return a quasi-closed container; `origins` has one letter a replica."""
    plain = case(words)
    placed = tuple(
        replace(p, replica=replace(p.replica, origin_datanode_id=f"origin-{letter}"))
        for p, letter in zip(plain.placed, origins, strict=True)
    )
    box = container(ContainerState.QUASI_CLOSED, sequence_id=6)
    return replace(plain, container=box, placed=placed, **more)


def removable(given: Case) -> list[int]:
    """Return the numbers of the replicas that may be removed, each alone."""
    return [
        i + 1
        for i, p in enumerate(given.placed)
        if may_be_removed(given, p.datanode_id, keep_count=3)
    ]


SPARE = quasi("Q@5 Q@5 Q@5 Q@5 Q@4 Q@4 Q@4", "aaaabbb")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (SPARE, [1, 2, 3, 4, 5, 6, 7]),  # three of the last commit, two of the other
        (quasi("Q@5 Q@5 Q@5 Q@4 Q@4", "aaabb"), []),
        (quasi("Q@5 Q@5 Q@5 Q@5 Q@4 Q@4", "aaaabb"), [1, 2, 3, 4]),
        (quasi("Q@5 Q@5 Q@5 Q@4 Q@4 Q@4", "aaabbb"), [4, 5, 6]),
        (quasi("Q@5 Q@5 Q@5 Q@5", "aaaa"), [1, 2, 3, 4]),  # one origin: as many as of any
        (quasi("Q@5 Q@5 Q@5", "aaa"), []),
        (quasi("Q@5 Q@5 Q@5 Q@4", "aaaa"), [4]),  # none that has more goes for one with less
        (quasi("Q@5 Q@5 Q@5 U@6", "aaab"), []),  # what is damaged is nobody's witness
        (quasi("Q@5 Q@5 Q@5 U@6 U@6 U@6 U@6", "aaabbbb"), []),
        (quasi("Q@5 Q@5 Q@5 Q@5 Q@4 Q@4", "aaaabb", excluded=frozenset({"dn1"})), []),
        (quasi("Q@5 Q@5 Q@5 Q@5 Q@4 Q@4", "aaaabb", deletes=("dn2",)), [2]),  # one at a time
    ],
)
def test_as_many_equal_ones_of_its_origin_stay_as_there_should_be(
    given: Case, expected: list[int]
) -> None:
    """
    Whoever asks for it: the control plane itself, a plan or an operator.
    """
    assert expected == removable(given)


@pytest.mark.parametrize(
    ("of_replica", "of_place"),
    [
        ({"tree": summary(9)}, {}),
        ({"tree": None}, {}),
        ({"finding_count": 1}, {}),
        ({"load_error": "no such directory"}, {}),
        ({}, {"health": Health.STALE}),
        ({}, {"op_state": OpState.DECOMMISSIONING}),
        ({}, {"is_confirmed": False}),
    ],
)
def test_one_in_doubt_keeps_the_others(
    of_replica: dict[str, Any], of_place: dict[str, Any]
) -> None:
    """
    Another tree, damage, or a node of which nobody knows what it has.
    """
    given = quasi("Q@5 Q@5 Q@5 Q@5 Q@4 Q@4", "aaaabb")

    assert [] == removable(changed(given, 1, of_replica, **of_place))


def test_a_closed_container_is_counted_whole() -> None:
    """
    Its origins have become one.
    """
    closed = replace(SPARE, container=container())

    assert [] == removable(closed)
    assert [1, 2, 3, 4] == removable(replace(case("C C C C"), container=container()))


@pytest.mark.parametrize(
    ("words", "of", "expected"),
    [
        ("Q@5 Q@5 Q@4", "aab", [("dn1 dn2", 3), ("dn3", 2)]),
        ("Q@5 Q@4 Q@5", "abc", [("dn1", 3), ("dn2", 2), ("dn3", 3)]),  # two have the last one
        ("Q@5 Q@4", "ab", [("dn1", 3), ("dn2", 2)]),
        ("Q@4 Q@5", "aa", [("dn1 dn2", 3)]),  # one origin
        ("Q@5 Q@4 Q@5!", "abc", [("dn1", 3), ("dn2", 2)]),  # died with its node
        ("Q@5 Q@4 Q@5/m!", "abc", [("dn1", 3), ("dn2", 2), ("dn3", 3)]),  # expected back
        ("Q@5 Q@4!", "ab", [("dn1", 3)]),
        ("Q@4 U@9", "ab", [("dn1", 3), ("dn2", 2)]),  # what is damaged has no last commit
        ("Q@4 U@4", "ab", [("dn1", 3), ("dn2", 2)]),
        ("U@5 U@4", "ab", [("dn1", 2), ("dn2", 2)]),
        ("U@5 Q@5", "aa", [("dn1 dn2", 3)]),
        ("U@5 Q@5 Q@4", "aab", [("dn1 dn2", 3), ("dn3", 2)]),
        ("Q@0 Q@0", "ab", [("dn1", 3), ("dn2", 3)]),  # nothing in any: all have the last
        ("Q@5!", "a", []),
    ],
)
def test_an_origin_with_the_last_commit_has_three_copies_and_another_two(
    words: str, of: str, expected: list[tuple[str, int]]
) -> None:
    """One origin alone has as many as any container."""
    found = origins(quasi(words, of))

    assert expected == [
        (" ".join(p.datanode_id for p in each.replicas), each.target_count) for each in found
    ]


def test_a_replica_without_an_origin_is_its_own() -> None:
    """Nobody said whose writes it took."""
    given = quasi("Q@5 Q@5", "aa")
    unnamed = changed(changed(given, 1, {"origin_datanode_id": ""}), 2, {"origin_datanode_id": ""})

    assert 1 == len(origins(given))
    assert 2 == len(origins(unnamed))


def test_a_container_of_one_origin_keeps_as_many_as_it_should_have() -> None:
    """Two, if two were asked for; one of three is spare then."""
    given = quasi("Q@5 Q@5 Q@5", "aaa")
    of_two = replace(given, container=replace(given.container, replication_factor=2))

    assert [] == removable(given)
    assert [1, 2, 3] == removable(of_two)
