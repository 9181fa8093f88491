"""Before a replica of a quasi-closed container goes: enough of its origin stay, equal to it."""

from dataclasses import replace
from typing import Any

import pytest

from health.rules import Rules
from scm.state.entities import ContainerState, NodeHealthState, OpState
from tests.support.control.judged_container import JudgedContainer
from tests.support.control.judged_removals import may_be_removed, origins
from tests.support.control.replica_words import case, changed
from tests.support.control.scm_world import container, summary

DEFAULTS = Rules()


def quasi(words: str, origins: str, **more: Any) -> JudgedContainer:
    """Return a quasi-closed container; `origins` has one letter a replica."""
    plain = case(words)
    placed = tuple(
        replace(p, replica=replace(p.replica, origin_datanode_id=f"origin-{letter}"))
        for p, letter in zip(plain.placed, origins, strict=True)
    )
    box = container(ContainerState.QUASI_CLOSED, sequence_id=6)
    return replace(plain, container=box, placed=placed, **more)


def removable(given: JudgedContainer, keep_count: int = 3, rules: Rules = DEFAULTS) -> list[int]:
    """Return the numbers of the replicas that may be removed, each alone."""
    return [
        i + 1
        for i, p in enumerate(given.placed)
        if may_be_removed(given, p.datanode_id, keep_count=keep_count, rules=rules)
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
def test_equal_replicas_of_an_origin_stay_up_to_the_minimum(
    given: JudgedContainer, expected: list[int]
) -> None:
    """The control plane itself, a plan and an operator are treated alike."""
    assert expected == removable(given)


@pytest.mark.parametrize(
    ("of_replica", "of_place"),
    [
        ({"tree": summary(9)}, {}),
        ({"tree": None}, {}),
        ({"finding_count": 1}, {}),
        ({}, {"health": NodeHealthState.STALE}),
        ({}, {"op_state": OpState.DECOMMISSIONING}),
        ({}, {"is_confirmed": False}),
    ],
)
def test_doubtful_replica_of_an_origin_keeps_the_others(
    of_replica: dict[str, Any], of_place: dict[str, Any]
) -> None:
    """The doubtful replica has another tree, damage, or a node whose replicas are unknown."""
    given = quasi("Q@5 Q@5 Q@5 Q@5 Q@4 Q@4", "aaaabb")

    assert [] == removable(changed(given, 1, of_replica, **of_place))


@pytest.mark.parametrize(
    ("words", "of", "keep_count", "expected"),
    [
        ("Q@5 Q@5 Q@5 U@5", "aaaa", 3, [4]),
        ("Q@5 Q@5 Q@5 U@4", "aaaa", 3, [4]),
        ("Q@5 Q@5 Q@5 U@6", "aaaa", 3, []),  # it has more
        ("Q@5 Q@5 Q@5 U@5", "aaab", 3, []),  # nobody else has what its origin had
        ("Q@5 Q@5 U@5", "aaa", 3, []),
        ("Q@5 Q@5 U@5", "aaa", 1, [3]),
        ("Q@5 Q@4 U@4", "aba", 2, [3]),
        ("Q@5 Q@4 U@4", "aba", 3, []),
        ("Q@5? Q@5 U@5", "aba", 1, []),
        ("Q@5/d Q@5 U@5", "aba", 1, []),
    ],
)
def test_a_damaged_one_may_go_where_its_origin_has_all_it_had(
    words: str, of: str, keep_count: int, expected: list[int]
) -> None:
    """The number of whole replicas that the caller requires must stay, whatever their origins."""
    given = quasi(words, of)
    unloadable = changed(given, len(given.placed), {"load_error": "no descriptor"})

    assert expected == removable(given, keep_count)
    assert expected == [i for i in removable(unloadable, keep_count) if i == len(given.placed)]
    assert [] == removable(replace(given, deletes=("dn1",)), keep_count)


def test_origin_with_differing_best_replicas_keeps_them_all() -> None:
    """The right one is unknown, or one has no tree."""
    given = quasi("Q@5 Q@5 Q@5 U@5", "aaaa")

    for tree in (summary(9), None):
        assert [] == removable(changed(given, 1, {"tree": tree}), 2 if tree else 3)


def test_an_operator_may_choose_how_many_of_an_origin_are_kept() -> None:
    """The containers have fewer origins than copies."""
    stuck, written = quasi("Q@5 Q@5 Q@5 Q@4 Q@4", "aaabb"), quasi("Q@5 Q@5 Q@5", "abc")
    fewer = Rules(best_origin_copies=2, other_origin_copies=1)
    more = Rules(best_origin_copies=5, other_origin_copies=4)

    assert [2, 1] == [each.target_count for each in origins(stuck, fewer)]
    assert [5, 4] == [each.target_count for each in origins(stuck, more)]
    assert [3, 3, 3] == [each.target_count for each in origins(written, more)]
    assert [1, 2, 3, 4, 5] == removable(stuck, rules=fewer)


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
    """A single origin has as many copies as any container."""
    found = origins(quasi(words, of), Rules())

    assert expected == [
        (" ".join(p.datanode_id for p in each.replicas), each.target_count) for each in found
    ]


def test_a_replica_without_an_origin_is_its_own() -> None:
    """The origin of its writes is unknown."""
    given = quasi("Q@5 Q@5", "aa")
    unnamed = changed(changed(given, 1, {"origin_datanode_id": ""}), 2, {"origin_datanode_id": ""})

    assert 1 == len(origins(given, Rules()))
    assert 2 == len(origins(unnamed, Rules()))


def test_a_container_of_one_origin_keeps_as_many_as_it_should_have() -> None:
    """Two, if two were asked for; one of three is spare then."""
    given = quasi("Q@5 Q@5 Q@5", "aaa")
    of_two = replace(given, container=replace(given.container, replication_factor=2))

    assert [] == removable(given)
    assert [1, 2, 3] == removable(of_two)
