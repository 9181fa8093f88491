"""The last look before a replica goes: who is whole, and who may make room."""

from dataclasses import replace
from typing import Any

import pytest

from merkle.checksum import Algorithm
from merkle.replica import ReplicaState
from merkle.tree_summary import TreeSummary
from scm.state.entities import ContainerState, NodeHealthState, OpState
from tests.support.control.judged_container import JudgedContainer
from tests.support.control.judged_removals import (
    giving_way,
    good_names,
    may_be_removed,
    movable,
    places,
    whole_names,
)
from tests.support.control.replica_words import case, changed
from tests.support.control.scm_world import container, summary

IN_DOUBT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"state": ReplicaState.UNHEALTHY}, {}),
    ({"state": ReplicaState.QUASI_CLOSED}, {}),
    ({"state": ReplicaState.RECOVERING}, {}),
    ({"bcsid": 4}, {}),  # the container has 5
    ({"finding_count": 1}, {}),
    ({"load_error": "no descriptor"}, {}),
    ({}, {"health": NodeHealthState.STALE}),
    ({}, {"health": NodeHealthState.DEAD}),
    ({}, {"op_state": OpState.DECOMMISSIONING}),
    ({}, {"op_state": OpState.ENTERING_MAINTENANCE}),
    ({}, {"op_state": OpState.IN_MAINTENANCE}),
    ({}, {"is_confirmed": False}),
]


def good(given: JudgedContainer) -> list[str]:
    """Return where replicas are that are known good."""
    return good_names(given)


class TestWhole:
    @pytest.mark.parametrize(("of_replica", "of_place"), IN_DOUBT)
    def test_replica_in_doubt_is_not_whole(
        self, of_replica: dict[str, Any], of_place: dict[str, Any]
    ) -> None:
        """The doubtful replica is neither moved nor relied on, and the others are."""
        given = changed(case("C C C"), 2, of_replica, **of_place)

        assert "dn2" not in whole_names(given)
        assert {"dn1", "dn3"} == movable(given)
        assert ["dn1", "dn3"] == good(given)

    def test_replica_under_deletion_is_not_whole(self) -> None:
        """The replica counts as gone."""
        given = case("C C C", deletes=("dn2",))

        assert "dn2" not in whole_names(given)
        assert ["dn1", "dn3"] == good(given)

    def test_replica_with_more_than_was_committed_is_whole(self) -> None:
        """The replica has all that was committed."""
        assert ["dn1", "dn2"] == good(case("C@6 C@5"))

    def test_excluded_whole_replica_is_not_moved(self) -> None:
        """The excluded replica still counts as one of the good ones."""
        given = case("C C C", excluded=frozenset({"dn2", "dn9"}))

        assert {"dn1", "dn3"} == movable(given)
        assert ["dn1", "dn2", "dn3"] == good(given)


class TestEqual:
    @pytest.mark.parametrize(
        "tree",
        [
            None,
            summary(8),
            summary(7, tombstones=3),  # what one deleted the other still has
            TreeSummary(Algorithm.CRC32C, 7, 1, 1, 0, 0),  # folded otherwise: nothing is known
        ],
    )
    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_while_any_two_differ_none_is_good(self, tree: TreeSummary | None, number: int) -> None:
        """The right one is unknown. A whole replica may be moved all the same."""
        given = changed(case("C C C"), number, {"tree": tree})

        assert [] == good(given)
        assert {"dn1", "dn2", "dn3"} == movable(given)
        assert not may_be_removed(given, "dn1", keep_count=1)

    def test_replica_that_is_not_whole_may_differ(self) -> None:
        """The differing replica is no witness."""
        given = changed(case("C C U"), 3, {"tree": summary(8)})

        assert ["dn1", "dn2"] == good(given)

    def test_no_replica_is_no_good_replica(self) -> None:
        """An empty answer, and no fault."""
        assert [] == good(case("U"))
        assert ["dn1"] == good(case("C"))
        assert [] == good(changed(case("C"), 1, {"tree": None}))


@pytest.mark.parametrize(
    ("words", "node", "keep_count", "expected"),
    [
        ("C C C", "dn1", 2, True),
        ("C C C", "dn1", 3, False),
        ("C C U", "dn3", 2, True),  # it does not count itself
        ("C C U", "dn3", 3, False),
        ("C C U", "dn1", 1, True),
        ("C C U", "dn1", 2, False),
        ("C C", "dn9", 2, True),  # gone already: nothing is lost
    ],
)
def test_delete_needs_enough_remaining_good_replicas(
    words: str, node: str, keep_count: int, expected: bool
) -> None:
    """Other replicas of the container do not matter."""
    assert expected is may_be_removed(case(words), node, keep_count=keep_count)


@pytest.mark.parametrize(
    ("bcsid", "others", "expected"),
    [(6, "C@5 C@4", True), (5, "C@5 C@4", False), (5, "C@4 C@6", False)],
)
def test_a_replica_has_more_if_no_other_has_as_much(
    bcsid: int, others: str, expected: bool
) -> None:
    """A replica with as much data does not have more, and gives way."""
    found = giving_way(case(f"{others} U@{bcsid}"))

    assert expected is (found is None)


def test_the_order_of_victims_is_the_same_for_every_control_plane() -> None:
    """CRC-32 of container and datanode, as gzip computes it: a restart must not choose again."""
    assert [546003713, 3112307387, 3464837677] == places(case("C C C"))


class TestUnblock:
    """No node has room for a copy: an unhealthy replica makes way for one."""

    def victim(self, given: JudgedContainer) -> str:
        """Return which one; empty: none."""
        found = giving_way(given)
        return "" if found is None else found.datanode_id

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ("C C U", "dn3"),
            ("C U U", "dn2"),  # of two alike the first in the stable order
            ("U U C", "dn1"),
            ("C U", ""),  # two must stay
            ("C C! U", ""),  # one died with its node
            ("C C/m! U", "dn3"),  # in maintenance it is expected back
            ("U U U", ""),  # one that is as it should be must stay
            ("U@0 U@0 U@0", ""),
            ("C C C", ""),
            ("C U@5 U@4", "dn3"),  # with the fewest commits
            ("C U@4 U@5", "dn2"),
            ("C C U@6", ""),  # it has what nobody else has
            ("C@6 C U@6", "dn3"),
            ("C C Q@4", "dn3"),  # the container has 5
            ("C C Q@5", ""),
            ("C@7 C Q@6", ""),  # quasi-closed with all that was committed: it may yet close
        ],
    )
    def test_unblocking_delete_needs_two_others_and_one_good_one(
        self, words: str, expected: str
    ) -> None:
        """The container has all commits up to 5."""
        assert expected == self.victim(case(words))

    def test_replica_that_lost_more_blocks_is_deleted_first(self) -> None:
        """Blocks of the fuller bad replica are otherwise only in the good one."""
        fuller = changed(case("C U U"), 2, {"block_count": 2})

        assert "dn3" == self.victim(changed(fuller, 3, {"block_count": 1}))

    @pytest.mark.parametrize(
        "more",
        [
            {"adds": ("dn9",)},
            {"deletes": ("dn1",)},
            {"healable_holders": frozenset({"dn3"})},
            {"excluded": frozenset({"dn3"})},
        ],
    )
    def test_unblocking_delete_waits_for_pending_work(self, more: dict[str, Any]) -> None:
        """The pending work is a copy, a delete, or a repair that may fix the replica."""
        assert "" == self.victim(case("C C U", **more))

    @pytest.mark.parametrize(("of_replica", "of_place"), IN_DOUBT[6:])
    def test_unblocking_delete_needs_a_reliable_node(
        self, of_replica: dict[str, Any], of_place: dict[str, Any]
    ) -> None:
        """The node is silent, not in service, or has not reported since the start."""
        assert "" == self.victim(changed(case("C C U"), 3, of_replica, **of_place))

    def test_unloadable_replica_is_unhealthy_in_any_state(self) -> None:
        """A quasi-closed one with all commits is kept all the same."""
        unloadable = {"load_error": "no descriptor"}

        assert "dn3" == self.victim(changed(case("C C C"), 3, unloadable))
        assert "dn3" == self.victim(changed(case("C C Q@4"), 3, unloadable))
        assert "" == self.victim(changed(case("C C Q@5"), 3, unloadable))

    def test_quasi_closed_behind_is_as_it_should_be_until_its_container_is_closed(self) -> None:
        """Then it is what the container is, if it has all that its origin had."""
        apart = replace(case("Q@4 Q@4 U@3"), container=container(ContainerState.QUASI_CLOSED))
        waiting = changed(apart, 3, {"origin_datanode_id": "dn1"})

        assert ("", "dn3") == (self.victim(apart), self.victim(waiting))
        assert "" == self.victim(changed(waiting, 1, {"bcsid": 2}))
        assert "" == self.victim(changed(waiting, 1, {}, health=NodeHealthState.STALE))
        assert "" == self.victim(replace(waiting, container=container()))
