"""Shards by their index sets: how a container is, what is copied, what may go."""

from dataclasses import replace
from typing import Any

import pytest

from health.racks import misplaced_count
from health.words import HealthState
from merkle.checksum import Algorithm
from merkle.replica import ReplicaState
from merkle.tree_summary import TreeSummary
from scm.cluster.container_context import is_better_rack
from scm.state.entities import NodeHealthState as NodeHealth
from scm.state.entities import OpState
from tests.support.control.judged_case import copied as to_copy
from tests.support.control.judged_case import health, lost, obstacle, victims
from tests.support.control.judged_container import JudgedContainer
from tests.support.control.judged_removals import (
    copy_count,
    giving_way,
    may_lose_shard,
    may_remove_shard,
)
from tests.support.control.replica_words import changed, shards
from tests.support.control.scm_world import container, summary


@pytest.mark.parametrize(
    ("row", "words", "copied", "may_go"),
    [
        ("V58", "C#1 C#2 C#3 C#4 C#5", [], True),
        ("V61", "C#1 C#2 C#3 C#4/d C#5/D", [4, 5], False),
        ("copied", "C#1 C#2 C#3 C#4/d C#5/D C#4 C#5", [], True),
        ("lost, not leaving", "C#1 C#2 C#3 C#4", [], False),
        ("one rests", "C#1 C#2 C#3 C#4 C#5/e", [], True),
        ("two rest: one copy keeps four online", "C#1 C#2 C#3 C#4/e C#5/e", [4], False),
        ("of two that rest the first is off already", "C#1/m! C#2/e C#3 C#4 C#5", [2], False),
        ("of two that rest the second is off already", "C#1/e C#2/m! C#3 C#4 C#5", [1], False),
        ("both that rest are off", "C#1/m! C#2/m! C#3 C#4 C#5", [], False),
        ("three rest, one of them is off", "C#1/e C#2/m! C#3/e C#4 C#5", [1, 3], False),
        ("no substitute missed a commit", "C#1/d? Q@4#1 C#2 C#3 C#4 C#5", [], False),
        ("nor for one that is off", "C#1/m! Q@4#1 C#2/e C#3 C#4 C#5", [2], False),
        ("a leaving one that died is rebuilt", "C#1 C#2 C#3 C#4 C#5/d!", [], False),
        ("an unhealthy one is no copy", "C#1 C#2 C#3 C#4 C#5/d U#5", [5], False),
        ("leaving and resting: a copy of the leaving one", "C#1/d C#2 C#3 C#4 C#5/e", [1], False),
    ],
)
def test_departing_shards_are_copied_once_per_index(
    row: str, words: str, copied: list[int], may_go: bool
) -> None:
    """Reading needs three of five, and one more stays online."""
    given = shards(words)

    assert copied == [p.replica.replica_index for p in to_copy(given)], row
    assert may_go is (obstacle(given) is None), row


@pytest.mark.parametrize(
    ("row", "words", "expected"),
    [
        ("whole", "C#1 C#2 C#3 C#4 C#5", HealthState.HEALTHY),
        ("S1.33", "C#1 C#2 C#3 U#4 U#5", HealthState.UNDER_REPLICATED),
        ("S1.34", "C#1 C#2 C#3", HealthState.UNDER_REPLICATED),
        ("S1.35", "C#1 C#2 U#3", HealthState.UNHEALTHY),
        ("S1.36", "C#1 C#2", HealthState.MISSING),
        ("S1.37", "C#1 C#2 U#2", HealthState.MISSING),
        ("S1.38", "C#1 C#2 U#2 C#3", HealthState.UNDER_REPLICATED),
        ("V70", "C#1 C#2 C#3 C#4 C#5 U#5", HealthState.UNHEALTHY_OVER_REPLICATED),
        ("V65", "C#1 C#2 U#3 U#4", HealthState.UNHEALTHY),
        ("V67", "C#1 C#2/e", HealthState.MISSING_UNDER_REPLICATED),
        ("V74", "C#1 C#1/m C#2 C#2/m C#3 C#4 C#5", HealthState.HEALTHY),
        ("twice", "C#1 C#1 C#2 C#3 C#4 C#5", HealthState.OVER_REPLICATED),
        ("its node died", "C#1 C#2 C#3 C#4 C#5!", HealthState.UNDER_REPLICATED),
        ("being rebuilt", "C#1 C#2 C#3 C#4 R#5", HealthState.UNDER_REPLICATED),
    ],
)
def test_index_sets_say_how_a_container_is(row: str, words: str, expected: HealthState) -> None:
    """Ozone's table, in the words of its code where one of two had to be chosen."""
    assert expected is health(shards(words)), row


@pytest.mark.parametrize(
    ("row", "words", "removed"),
    [
        ("whole", "C#1 C#2 C#3 C#4 C#5", []),
        ("one of two", "C#1 C#2 C#3 C#4 C#5 C#5", [5]),
        ("the bad one of two", "C#1 C#2 C#3 C#4 C#5 U#5", ["dn6"]),
        ("the one that is not behind", "C#1 C#2 C#3 C#4 C#5 Q@4#5", ["dn6"]),
        ("never while an index lacks", "C#1 C#2 C#3 C#4 C#4 U#4", []),
        ("never what is the last of its index", "C#1 C#2 C#3 C#4 U#5", []),
        ("never counting on a silent node", "C#1 C#2 C#3 C#4 C#5? U#5", []),
        ("never counting on a node that leaves", "C#1 C#2 C#3 C#4 C#5/d C#5 C#4/m", []),
        ("never on a silent node", "C#1 C#2 C#3 C#4 C#5 U#5?", []),
        ("of three, two", "C#1 C#1 C#1 C#2 C#3 C#4 C#5", [1, 1]),
    ],
)
def test_surplus_shards_are_removed_by_index(
    row: str, words: str, removed: list[int | str]
) -> None:
    """One whole shard of each index stays, whatever happens to the deletes."""
    given = shards(words)

    found = victims(given)

    named = [p.datanode_id if "dn6" in removed else p.replica.replica_index for p in found]
    assert removed == named, row
    assert all(may_remove_shard(given, p.datanode_id) for p in found)


@pytest.mark.parametrize("twin", ["C#1!", "C#1/d", "C#1/e", "Q#1@4", "U#1"])
def test_the_delete_of_a_twin_that_does_not_count_makes_no_index_lack(twin: str) -> None:
    """The shard would be rebuilt, be one too many, and be deleted, again and again."""
    given = replace(shards(f"C#1 {twin} C#2 C#3 C#4 C#5"), deletes=("dn2",))

    assert () == lost(given)
    assert [] == victims(given)
    assert HealthState.UNDER_REPLICATED is not health(given)


def test_unequal_shards_of_one_index_are_both_kept() -> None:
    """Two shards of one index have different trees, and it is unknown which is right."""
    given = shards("C#1 C#2 C#3 C#4 C#5 C#5")
    other = replace(given.placed[5].replica, tree=summary(8))
    placed = (*given.placed[:5], replace(given.placed[5], replica=other))

    unequal = replace(given, placed=placed)

    assert [] == victims(unequal)
    assert not may_remove_shard(unequal, "dn5")
    assert HealthState.OVER_REPLICATED is health(unequal)


@pytest.mark.parametrize(
    ("row", "block_counts", "tombstone_counts", "owes_deletes", "removed"),
    [
        ("dn5 was rebuilt, dn6 came back with its tombstones", (3, 3), (0, 2), False, ["dn5"]),
        ("the same, seen from the other side", (3, 3), (2, 0), False, ["dn6"]),
        ("a delete is owed: one may have what the other has not", (3, 3), (0, 2), True, []),
        ("not as many blocks live", (3, 2), (0, 2), False, []),
        ("no tombstones explain the difference", (3, 3), (0, 0), False, []),
        ("both have some, and not the same", (3, 3), (1, 2), False, []),
    ],
)
def test_a_rebuilt_shard_goes_when_its_twin_with_tombstones_is_back(
    row: str,
    block_counts: tuple[int, int],
    tombstone_counts: tuple[int, int],
    owes_deletes: bool,
    removed: list[str],
) -> None:
    """Their roots differ for ever, for a rebuilt shard knows no deleted blocks."""
    given = shards("C#1 C#2 C#3 C#4 C#5 C#5")
    trees = [
        TreeSummary(Algorithm.XXH3_64, 10 + i, 1, blocks, tombs, tombs)
        for i, (blocks, tombs) in enumerate(zip(block_counts, tombstone_counts, strict=True))
    ]
    twins = tuple(
        replace(p, replica=replace(p.replica, tree=tree))
        for p, tree in zip(given.placed[4:], trees, strict=True)
    )
    unequal = replace(given, placed=(*given.placed[:4], *twins), owes_deletes=owes_deletes)

    assert removed == [p.datanode_id for p in victims(unequal)], row
    assert removed == [n for n in ("dn5", "dn6") if may_remove_shard(unequal, n)], row


def test_an_excluded_shard_is_neither_copied_nor_moved() -> None:
    """Orders about it failed again and again: a person looks at it first."""
    leaving = shards("C#1 C#2 C#3 C#4/d C#5/d")
    crowded = shards("C#1 C#2 C#3 C#4 C#5", "aaaab")
    names = frozenset(p.datanode_id for p in crowded.placed)

    assert [5] == [
        p.replica.replica_index for p in to_copy(replace(leaving, excluded=frozenset({"dn4"})))
    ]
    assert to_copy(replace(crowded, cluster_rack_count=5), is_move=True)
    assert not to_copy(replace(crowded, cluster_rack_count=5, excluded=names), is_move=True)


def test_a_shard_goes_from_the_fullest_rack() -> None:
    """The two shards are equal, and the one on the rack with more shards goes."""
    given = shards("C#1 C#2 C#3 C#4 C#5 C#5")
    racks = ["/a", "/b", "/c", "/c", "/c", "/d"]
    placed = tuple(replace(p, rack=rack) for p, rack in zip(given.placed, racks, strict=True))

    assert ["dn5"] == [p.datanode_id for p in victims(replace(given, placed=placed))]


def test_a_delete_is_looked_at_again_when_its_turn_comes() -> None:
    """A twin that died meanwhile, or is being deleted itself, keeps the other one alive."""
    both = shards("C#1 C#2 C#3 C#4 C#5 C#5")

    assert may_remove_shard(replace(both, deletes=("dn5",)), "dn5")
    assert not may_remove_shard(replace(both, deletes=("dn5", "dn6")), "dn5")
    assert not may_remove_shard(shards("C#1 C#2 C#3 C#4 C#5! C#5"), "dn6")
    assert may_remove_shard(shards("C#1 C#2 C#3 C#4 U#5"), "dn5")
    assert not may_remove_shard(shards("C#1 C#2 C#3 C#4! U#5"), "dn5")
    assert may_remove_shard(shards("C#1 C#2 C#3 U#3"), "dn4")
    assert not may_remove_shard(shards("C#1 C#2 U#2"), "dn3")


@pytest.mark.parametrize(
    ("row", "words", "victim"),
    [
        ("four whole ones stay", "C#1 C#2 C#3 C#4 U#5", "dn5"),
        ("three are only just enough", "C#1 C#2 C#3 U#4 U#5", ""),
        ("one that has a whole twin goes first", "U#3 C#2 C#3 C#4 C#1 U#3 U#5", "dn1 dn6"),
        ("nothing is bad", "C#1 C#2 C#3 C#4", ""),
        ("its node is silent", "C#1 C#2 C#3 C#4 U#5?", ""),
    ],
)
def test_a_bad_shard_gives_way_while_more_stay_than_reading_needs(
    row: str, words: str, victim: str
) -> None:
    """No other node has room, so the shard is rebuilt in place of the bad one."""
    found = giving_way(shards(words))

    assert (found.datanode_id if found else "") in (victim.split() or [""]), row


def test_a_shard_that_may_be_healed_does_not_give_way() -> None:
    """A repair in place costs one stripe, and comes first; a copy under way, too."""
    given = shards("C#1 C#2 C#3 C#4 U#5")

    assert giving_way(replace(given, healable_holders=frozenset({"dn5"}))) is None
    assert giving_way(replace(given, adds=("dn9",))) is None


def test_crowded_shards_are_copied_to_another_rack_and_then_removed() -> None:
    """Five shards, five racks, two on one: copy, then remove the one on the crowded rack."""
    crowded = replace(shards("C#1 C#2 C#3 C#4 C#5", "aabcd"), cluster_rack_count=5)
    [moved] = to_copy(crowded, is_move=True)
    copy = replace(moved, rack="/e", replica=replace(moved.replica, datanode_id="dn9"))
    copied = replace(crowded, placed=(*crowded.placed, copy))

    assert (HealthState.MIS_REPLICATED, "/a") == (health(crowded), moved.rack)
    assert is_better_rack(crowded, moved, "/e")
    assert not is_better_rack(crowded, moved, "/b")
    assert not to_copy(replace(crowded, adds=("dn9",)), is_move=True)
    assert [moved.datanode_id] == [p.datanode_id for p in victims(copied)]


@pytest.mark.parametrize(
    ("racks", "cluster_rack_count", "expected"),
    [
        ("abcde", 5, 0),
        ("aabcd", 5, 1),
        ("aabcd", 4, 0),  # ceil(5 / 4) on each
        ("aaabc", 3, 1),
        ("aabbc", 3, 0),
        ("aaaab", 2, 1),
        ("aaaaa", 1, 0),
        ("aaaaab", 2, 1),  # one too many never makes it look misplaced by itself
    ],
)
def test_shards_are_scattered_over_all_racks(
    racks: str, cluster_rack_count: int, expected: int
) -> None:
    """The shards are on as many racks as there are shards, or evenly on fewer."""
    found = misplaced_count(
        racks, cluster_rack_count=cluster_rack_count, required_count=5, is_scattered=True
    )

    assert expected == found


def test_a_double_shard_gives_way_to_one_that_lacks() -> None:
    """No other node has room. The last whole copy of an index is never deleted."""
    given = shards("C#1 C#1 C#2 C#3 C#4")

    victim = giving_way(given)

    assert victim is not None
    assert 1 == victim.replica.replica_index
    assert may_remove_shard(given, victim.datanode_id)
    assert giving_way(shards("C#1 C#2 C#3 C#4")) is None


@pytest.mark.parametrize(
    "other",
    [
        {"finding_count": 1},
        {"bcsid": 3},
        {"tree": summary(99)},
        {"tree": None},
        {"state": ReplicaState.UNHEALTHY},
        {"replica_index": 5},
    ],
)
def test_shard_that_missed_a_commit_goes_only_if_its_equal_stays(
    other: dict[str, Any],
) -> None:
    """Three indexes are whole, as many as reading needs, so nothing else of the fourth may go."""
    given = shards("C#1 C#2 C#3 Q@4#4 Q@4#4")
    *rest, kept, victim = given.placed
    unlike = replace(kept, replica=replace(kept.replica, **other))
    changed = replace(given, placed=(*rest, unlike, victim))

    assert may_remove_shard(given, victim.datanode_id)
    assert not may_remove_shard(changed, victim.datanode_id)
    assert not may_remove_shard(replace(given, deletes=(kept.datanode_id,)), victim.datanode_id)
    assert giving_way(changed) is not victim


def yielding(given: JudgedContainer) -> str:
    """Return which replica gives way; empty: none."""
    found = giving_way(given)
    return "" if found is None else found.datanode_id


@pytest.mark.parametrize(
    ("row", "words", "racks", "expected"),
    [
        ("the bad one of a whole index first", "U#5 C#1 C#2 C#3 C#4 U#4", "", "dn6"),
        ("of two alike the first in the stable order", "C#1 C#2 C#3 C#4 U#5 U#5", "", "dn5"),
        ("a bad one rather than a double", "C#1 C#1 C#2 C#3 C#4 U#5", "", "dn6"),
        ("it has more than was committed", "C#1 C#2 C#3 C#4 U@6#5", "", ""),
        ("its node leaves", "C#1 C#2 C#3 C#4 U#5/d", "", ""),
        ("quasi-closed behind", "C#1 C#2 C#3 C#4 Q@4#5", "", "dn5"),
        (
            "one of two that missed the same, though only three",
            "C#1 C#2 C#3 Q@4#4 Q@4#4",
            "",
            "dn5",
        ),
        ("one that missed a commit, but only three", "C#1 C#2 C#3 Q@4#4", "", ""),
        ("of two that missed a commit one more", "C#1 C#2 C#3 Q@4#4 Q@3#4", "", ""),
        ("two damaged ones, but only three", "C#1 C#2 C#3 U@4#4 U@4#4", "", ""),
        ("two that missed the same, but only two", "C#1 C#2 Q@4#4 Q@4#4", "", ""),
        ("of two equal ones from the fuller rack", "C#1 C#1 C#2 C#3 C#4", "abbcd", "dn2"),
        ("the same the other way round", "C#1 C#1 C#2 C#3 C#4", "babcd", "dn1"),
        ("from racks alike the first in the stable order", "C#1 C#2 C#3 C#4 C#4", "", "dn5"),
        ("a double, though only three indexes", "C#1 C#1 C#2 C#3", "", "dn1"),
        ("a double, the fourth is on a node that leaves", "C#1 C#2 C#3 C#3 C#4/d", "", "dn4"),
        ("a bad one, but only three indexes", "C#1 C#1 C#2 C#3 U#4", "", "dn1"),
        ("a bad one of a whole index, though only three", "C#1 C#2 C#3 U#3", "", "dn4"),
        ("the same, but only two indexes", "C#1 C#2 U#2", "", ""),
        ("a double, but only two indexes", "C#1 C#1 C#2", "", ""),
        ("three of one index", "C#1 C#2 C#3 C#3 C#3 C#4", "abccde", "dn4"),
        ("an index that the code does not have", "C#1 C#2 C#3 C#6 U#5", "", ""),
        ("an index below the first", "C#1 C#2 C#3 C#0 U#5", "", ""),
        ("the last index counts", "C#1 C#2 C#3 C#5 U#4", "", "dn5"),
    ],
)
def test_shard_to_delete_for_room_is_chosen(
    row: str, words: str, racks: str, expected: str
) -> None:
    """If a bad shard goes, four whole indexes stay, one more than reading needs. If a double
    goes, as many indexes stay as there were.
    """
    assert expected == yielding(shards(words, racks)), row


@pytest.mark.parametrize(
    ("of_replica", "of_place"),
    [
        ({}, {"is_confirmed": False}),
        ({}, {"health": NodeHealth.DEAD}),
        ({}, {"op_state": OpState.IN_MAINTENANCE}),
        ({"state": ReplicaState.RECOVERING, "load_error": "not yet"}, {}),
    ],
)
def test_shard_on_an_unreliable_node_does_not_make_room(
    of_replica: dict[str, Any], of_place: dict[str, Any]
) -> None:
    """A shard that is being rebuilt does not make room either."""
    given = shards("C#1 C#2 C#3 C#4 U#5")

    assert "dn5" == yielding(given)
    assert "" == yielding(changed(given, 5, of_replica, **of_place))


def test_shard_makes_room_only_while_no_other_is_deleted() -> None:
    """One shard is deleted at a time."""
    given = shards("C#1 C#2 C#3 C#4 U#5 U#5")

    assert "" == yielding(replace(given, deletes=("dn6",)))


@pytest.mark.parametrize(
    ("row", "trees", "owes_deletes", "expected"),
    [
        ("rebuilt without tombstones", [(1, 3, 0), (2, 3, 2)], False, "dn4"),
        ("the same, seen from the other side", [(2, 3, 2), (1, 3, 0)], False, "dn5"),
        ("a delete is owed", [(1, 3, 0), (2, 3, 2)], True, ""),
        ("they differ, and nothing explains it", [(1, 3, 0), (2, 3, 0)], False, ""),
        ("other blocks live", [(1, 2, 0), (2, 3, 2)], False, ""),
        ("three, of which one is neither", [(1, 3, 0), (2, 3, 2), (3, 3, 1)], False, ""),
        ("three, two rebuilt", [(1, 3, 0), (2, 3, 2), (1, 3, 0)], False, "dn4"),
    ],
)
def test_differing_shard_makes_room_only_if_the_other_covers_it(
    row: str, trees: list[tuple[int, int, int]], owes_deletes: bool, expected: str
) -> None:
    """Root, live blocks and tombstones of each are given; all else is in order."""
    given = shards("C#1 C#2 C#3 " + "C#4 " * len(trees))
    for number, (root, block_count, tombs) in enumerate(trees, start=4):
        tree = TreeSummary(Algorithm.XXH3_64, root, 1, block_count, tombs, tombs)
        given = changed(given, number, {"tree": tree})

    assert expected == yielding(replace(given, owes_deletes=owes_deletes)), row


@pytest.mark.parametrize("number", [4, 5])
@pytest.mark.parametrize("tree", [None, TreeSummary(Algorithm.CRC32C, 9, 1, 1, 2, 2)])
def test_incomparable_shard_covers_nothing(number: int, tree: TreeSummary | None) -> None:
    """Without a tree, or with one of another algorithm, its content is unknown."""
    given = changed(shards("C#1 C#2 C#3 C#4 C#4"), number, {"tree": tree})

    assert "" == yielding(given)
    assert not may_remove_shard(given, "dn4")
    assert not may_remove_shard(given, "dn5")


@pytest.mark.parametrize(
    ("row", "words", "node", "expected"),
    [
        ("a bad one while four whole stay", "C#1 C#2 C#3 C#4 U#5", "dn5", True),
        ("three are only just enough", "C#1 C#2 C#3 U#5", "dn4", False),
        ("it has more than was committed", "C#1 C#2 C#3 C#4 U@6#5", "dn5", False),
        ("it has just that", "C#1 C#2 C#3 C#4 U@5#5", "dn5", True),
        ("a double while three stay", "C#1 C#2 C#3 C#3", "dn4", True),
        ("two are not enough to read", "C#1 C#2 C#2", "dn3", False),
        ("the only one of its index", "C#1 C#2 C#3 C#4 C#5", "dn5", False),
        ("an index that the code does not have", "C#1 C#2 C#3 C#4 C#6", "dn5", False),
        ("nobody has it", "C#1 C#2 C#3 C#4 C#5", "dn9", False),
        ("its twin is on a silent node", "C#1 C#2 C#3 C#4 C#4?", "dn4", False),
        ("it is on a silent node itself", "C#1 C#2 C#3 C#4 C#4?", "dn5", True),
    ],
)
def test_shard_may_be_removed_only_if_not_needed(
    row: str, words: str, node: str, expected: bool
) -> None:
    """The decision is made when the turn of the delete has come."""
    assert expected is may_remove_shard(shards(words), node), row


@pytest.mark.parametrize(
    ("words", "node", "deletes", "count", "expected"),
    [
        ("C#1 C#2 C#3 C#4 C#5", "dn5", (), 5, True),
        ("C#1 C#2 C#3 C#4", "dn4", (), 4, False),
        ("C#1 C#2 C#3 C#4 C#4", "dn4", (), 4, True),
        ("C#1 C#2 C#3 C#4 U#5", "dn5", (), 4, True),
        ("C#1 C#2 C#3 C#4 C#5", "dn5", ("dn1",), 4, False),
        ("C#1 C#2 C#3 C#4 C#5", "dn5", ("dn5",), 4, True),
        ("C#1 C#2 C#3 C#4? C#5", "dn5", (), 4, False),
    ],
)
def test_an_operator_may_remove_what_can_be_rebuilt(
    words: str, node: str, deletes: tuple[str, ...], count: int, expected: bool
) -> None:
    """One more than the three that reading needs stays. Shards under deletion do not count."""
    given = replace(shards(words), deletes=deletes)

    assert count == copy_count(given)
    assert expected is may_lose_shard(given, node)


@pytest.mark.parametrize(("count", "expected"), [(8, True), (7, False)])
def test_operator_keep_count_follows_from_the_scheme(count: int, expected: bool) -> None:
    """The count is one more than the number of data shards: seven."""
    wide = replace(container(replication_factor=9), scheme="rs-6-3-1024k")
    given = replace(shards(" ".join(f"C#{i + 1}" for i in range(count))), container=wide)

    assert expected is may_lose_shard(given, "dn1")


@pytest.mark.parametrize(
    ("row", "words", "racks", "to", "expected"),
    [
        ("off the crowded rack", "C#1 C#2 C#3 C#4 C#5", "abcda", "/e", True),
        ("to another that then is", "C#1 C#2 C#3 C#4 C#5", "abcda", "/b", False),
        ("where it is", "C#1 C#2 C#3 C#4 C#5", "abcda", "/a", False),
        ("spread already", "C#1 C#2 C#3 C#4 C#5", "abcde", "/f", False),
        ("its neighbour is dead", "C#1! C#2 C#3 C#4 C#5", "abcda", "/e", False),
        ("its neighbour is bad", "U#1 C#2 C#3 C#4 C#5", "abcda", "/e", False),
        ("its neighbour is quasi-closed", "Q#1 C#2 C#3 C#4 C#5", "abcda", "/e", False),
    ],
)
def test_a_rack_is_better_if_fewer_shards_share_one(
    row: str, words: str, racks: str, to: str, expected: bool
) -> None:
    """Five racks for five shards; only good ones are counted."""
    given = replace(shards(words, racks), cluster_rack_count=5)

    assert expected is is_better_rack(given, given.placed[4], to), row


def test_a_shard_that_cannot_be_loaded_crowds_no_rack() -> None:
    """The shard is to be rebuilt elsewhere."""
    given = replace(shards("C#1 C#2 C#3 C#4 C#5", "abcda"), cluster_rack_count=5)

    assert is_better_rack(given, given.placed[4], "/e")
    bad = changed(given, 1, {"load_error": "no descriptor"})
    assert not is_better_rack(bad, given.placed[4], "/e")


def test_a_shard_that_is_being_deleted_crowds_no_rack() -> None:
    """The shard counts as gone."""
    given = replace(shards("C#1 C#2 C#3 C#4 C#5", "abcda"), cluster_rack_count=5)

    assert not is_better_rack(replace(given, deletes=("dn1",)), given.placed[4], "/e")
