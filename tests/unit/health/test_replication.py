"""What a container needs: the tables of the documents, and the vectors of Ozone's handlers."""

from dataclasses import replace

import pytest

from health.racks import misplaced_count
from health.words import HealthState
from merkle.replica import ReplicaState
from scm.cluster.container_context import neighbours
from tests.support.control.judged_case import counts, health, needs, sources, victims
from tests.support.control.judged_container import JudgedContainer, JudgedReplica
from tests.support.control.judged_removals import giving_way, may_be_removed
from tests.support.control.replica_words import case, shards
from tests.support.control.scm_world import replica


def names(chosen: list[JudgedReplica]) -> list[str]:
    """Return the datanodes."""
    return [p.datanode_id for p in chosen]


# H: in service, !: dead, d: leaving, m: in maintenance; what the current code of Ozone counts.
@pytest.mark.parametrize(
    ("row", "words", "missing"),
    [
        ("S2.42", "C C C", 0),
        ("S2.43", "C C C!", 1),
        ("S2.44", "C C C/D", 1),
        ("S2.45", "C C! C/D", 2),
        ("S2.46 as printed", "C C/D C/D", 2),
        ("S2.46 as meant", "C! C/D C/D", 3),
        ("S2.47 as printed", "C C! C/m", 1),
        ("S2.47 as meant", "C C C/m", 0),
        ("S2.48", "C C/D C/m", 1),
        ("S2.49", "C/d C/d C/d", 3),
        ("S2.50", "C! C! C/d", 3),
        ("S2.51", "C! C! C!", 3),
        ("S2.52", "C! C/m C!", 2),
        ("S2.53", "C/m C/m C/m", 2),
        ("S2.54", "C C C C", -1),
        ("S2.55", "C C C C/m", 0),
        ("S2.56", "C C C/m C/m", 0),
        ("S2.57", "C C", 1),
        ("S2.57b", "C C/m", 1),
        ("S2.58", "C/d", 3),
        ("MAINTx4", "C/m C/m C/m C/m", 2),
    ],
)
def test_missing_replicas_are_those_of_the_table(row: str, words: str, missing: int) -> None:
    """With two online at least: no maintenance leaves a container without."""
    assert missing == counts(case(words))[0], row


@pytest.mark.parametrize(
    ("row", "words", "adds", "copies"),
    [
        ("S2.57", "C C", 1, 0),
        ("S2.57b", "C C/m", 1, 0),
        ("S2.58", "C/d", 2, 1),
        ("W31", "C", 1, 1),
    ],
)
def test_pending_adds_are_not_ordered_again(row: str, words: str, adds: int, copies: int) -> None:
    """The container stays under-replicated until the pending adds arrive."""
    judgement = needs(case(words, adds=tuple(f"new{i}" for i in range(adds))))

    assert (HealthState.UNDER_REPLICATED, copies) == (judgement.health, judgement.copies), row


@pytest.mark.parametrize("minimum", [1, 2, 3])
def test_maintenance_of_all_keeps_the_minimum_online(minimum: int) -> None:
    """This holds for any number of copies in maintenance, and also where the published function
    requires none.
    """
    for resting in range(1, 8):
        given = case(" ".join(["C/m"] * resting))
        assert minimum <= counts(given, maintenance_min=minimum)[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", HealthState.MISSING),
        ("C! C! C!", HealthState.MISSING),  # S2.51
        ("C C C", HealthState.HEALTHY),
        ("C C", HealthState.UNDER_REPLICATED),
        ("C C C C", HealthState.OVER_REPLICATED),
        ("C C C U", HealthState.OVER_REPLICATED),
        ("C C U", HealthState.UNDER_REPLICATED),
        ("U U", HealthState.UNHEALTHY_UNDER_REPLICATED),
        ("U U U", HealthState.UNHEALTHY),
        ("U U U U", HealthState.UNHEALTHY_OVER_REPLICATED),
        ("C C C?", HealthState.HEALTHY),
        ("Q@4 C C C", HealthState.OVER_REPLICATED),
    ],
)
def test_a_container_is_judged_by_its_replicas(words: str, expected: HealthState) -> None:
    """A stale node's replica counts, a dead one's does not."""
    assert expected is health(case(words))


def test_w20_three_on_one_rack_are_misplaced() -> None:
    """One copy goes elsewhere. While it is pending, nothing more is ordered."""
    crowded = case("C C C", "aaa", cluster_rack_count=3)
    fixing = replace(crowded, adds=("dn9@/b",))

    assert (HealthState.MIS_REPLICATED, 1) == (needs(crowded).health, needs(crowded).copies)
    assert (HealthState.MIS_REPLICATED, 0) == (needs(fixing).health, needs(fixing).copies)


@pytest.mark.parametrize(
    ("racks", "clusters", "expected"),
    [("aab", 3, 0), ("aaa", 1, 0), ("aaa", 2, 1), ("aaab", 3, 0), ("aaaa", 3, 1), ("a", 3, 1)],
)
def test_two_racks_are_enough(racks: str, clusters: int, expected: int) -> None:
    """More replicas than required never make a container look misplaced."""
    found = misplaced_count(
        racks, cluster_rack_count=clusters, required_count=3, is_scattered=False
    )

    assert expected == found


class TestUrgency:
    def test_the_last_copy_goes_before_the_second_to_last(self) -> None:
        """A replica that only leaves its node comes after both and before a misplaced one."""
        weights = [
            needs(case(words, racks, cluster_rack_count=3)).weight
            for words, racks in [("C", "a"), ("C C", "ab"), ("C C C/d", "abc"), ("C C C", "aaa")]
        ]

        assert [0, 1, 5, 6] == weights


class TestSources:
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ("C C C", ["dn1", "dn2", "dn3"]),
            ("C@1 C@2", ["dn2"]),  # W32
            ("C Q", ["dn1"]),
            ("Q Q@4", ["dn1"]),
            ("C U", ["dn1"]),
            ("U U@4", ["dn1"]),
            ("C? C!", []),
            ("C/d C/m", ["dn1", "dn2"]),
        ],
    )
    def test_sources_are_the_best_kind_with_the_highest_bcsid(
        self, words: str, expected: list[str]
    ) -> None:
        """Only nodes that answer count. Their operational state does not matter."""
        assert expected == names(sources(case(words)))

    def test_deleting_or_unloadable_replica_is_no_source(self) -> None:
        """The apparent quality of the replica does not matter."""
        given = case("C C C", deletes=("dn1",))
        lost = replace(given.placed[1].replica, load_error="no such directory")
        given = replace(
            given, placed=(given.placed[0], replace(given.placed[1], replica=lost), given.placed[2])
        )

        assert ["dn3"] == names(sources(given))


def test_w50_targets_stay_away_from_holders_but_not_from_the_dead() -> None:
    """Good replicas, those in maintenance and pending copies count for racks. The others are
    only avoided.
    """
    given = case("C C U C/d C/e C/m! C", adds=("dn9",), deletes=("dn7",))

    used, excluded = neighbours(given)

    assert {"dn1", "dn2", "dn5", "dn9"} == used
    assert {"dn3", "dn4", "dn7"} == excluded


class TestVictims:
    @pytest.mark.parametrize(
        ("row", "words", "racks", "deletes", "count"),
        [
            ("W25", "C C C C C", "abcde", 1, 1),
            ("W26", "C C C C?", "abcd", 0, 0),
            ("one too many", "C C C C", "abcd", 0, 1),
            ("two too many", "C C C C C", "abcde", 0, 2),
            ("enough", "C C C", "abc", 0, 0),
            ("maintenance copy does not count", "C C C C/m", "abcd", 0, 0),
            ("nor a leaving one", "C C C C/d", "abcd", 0, 0),
            ("none may go: too few whole ones", "C C U U", "abcd", 0, 0),
            ("behind", "C C C@4 C@4", "abcd", 0, 0),
        ],
    )
    def test_never_more_than_is_safe(
        self, row: str, words: str, racks: str, deletes: int, count: int
    ) -> None:
        """Adds do not count, deletes do, nodes that do not answer are no witnesses."""
        given = case(words, racks, deletes=tuple(f"dn{i + 1}" for i in range(deletes)))

        chosen = victims(given)

        assert count == len(chosen), row
        assert not set(names(chosen)) & set(given.deletes)

    @pytest.mark.parametrize("words", ["C C C U", "U@3 C C C", "C Q@4 C C"])
    def test_w29_what_does_not_match_goes_first(self, words: str) -> None:
        """The mismatched replica is deleted first, whatever the order of the others."""
        (victim,) = victims(case(words))

        assert ReplicaState.CLOSED is not victim.replica.state

    @pytest.mark.parametrize("words", ["U@9 C C C", "C Q@6 C C C"])
    def test_replica_with_more_than_its_container_is_no_victim(self, words: str) -> None:
        """The replica may be all that is left of a write. A whole replica is removed in its
        place.
        """
        assert {ReplicaState.CLOSED} >= {p.replica.state for p in victims(case(words))}

    def test_w28_the_last_of_a_rack_stays(self) -> None:
        """Four are on one rack and one on another. Two of the four go, whatever the order."""
        for lonely in range(5):
            racks = "".join("b" if i == lonely else "a" for i in range(5))
            chosen = victims(case("C C C C C", racks, cluster_rack_count=2))
            assert 2 == len(chosen)
            assert f"dn{lonely + 1}" not in names(chosen)

    @pytest.mark.parametrize(
        "given",
        [
            case("C C C C"),
            case("C C C U"),
            shards("C#1 C#1 C#2 C#3 C#4 C#5"),
            shards("C#1 C#2 C#3 C#4 C#5 U#5"),
        ],
    )
    def test_excluded_replica_is_no_victim(self, given: JudgedContainer) -> None:
        """An operator looks at it first. Another replica is removed in its place if there is
        one.
        """
        [first] = victims(given)

        held = replace(given, excluded=frozenset({first.datanode_id}))
        all_held = replace(given, excluded=frozenset(p.datanode_id for p in given.placed))

        assert first.datanode_id not in names(victims(held))
        assert [] == victims(all_held)

    def test_the_choice_is_the_same_for_everyone(self) -> None:
        """In whatever order the replicas are known (HDDS-4589)."""
        given = case("C C C C")
        other = replace(given, placed=given.placed[::-1])

        assert names(victims(given)) == names(victims(other))

    def test_while_roots_differ_nothing_goes(self) -> None:
        """The right one is unknown."""
        given = case("C C C C")
        odd = replace(given.placed[0], replica=replica("dn1", root=8))

        assert [] == victims(replace(given, placed=(odd, *given.placed[1:])))

    @pytest.mark.parametrize(
        "change",
        [
            {"is_confirmed": False},
            {"replica": replica("dn1", root=None)},
            {"replica": replica("dn1", finding_count=1)},
        ],
    )
    def test_a_replica_in_doubt_is_no_reason_to_delete_another(
        self, change: dict[str, object]
    ) -> None:
        """Three other replicas must be whole. One that was not seen since the start, has no tree
        or has findings does not count.
        """
        given = case("C C C C")
        doubtful = replace(given.placed[0], **change)  # type: ignore[arg-type]
        others = replace(given, placed=(doubtful, *given.placed[1:]))
        fewer = replace(given, placed=(doubtful, *given.placed[1:3]))

        assert not set(names(victims(others))) - {"dn1"}
        assert [] == victims(fewer)
        assert not may_be_removed(others, "dn2", keep_count=3)


class TestUnblock:
    @pytest.mark.parametrize(
        ("words", "more", "expected"),
        [
            ("C C U", {}, "dn3"),  # W34
            ("C C U", {"deletes": ("dn1",)}, None),
            ("C C U", {"adds": ("dn9",)}, None),
            ("C C U", {"healable_holders": frozenset({"dn3"})}, None),
            ("C U", {}, None),
            ("U U U", {}, None),
            ("C U@4 U@3", {}, "dn3"),
            ("C C Q@4", {}, "dn3"),
            ("C C U?", {}, None),
        ],
    )
    def test_w34_a_bad_replica_gives_way_when_two_others_stay(
        self, words: str, more: dict[str, object], expected: str | None
    ) -> None:
        """Nothing pending, one as it should be, and no repair is expected to heal it."""
        victim = giving_way(case(words, **more))

        assert expected == (None if victim is None else victim.datanode_id)


def test_an_unhealthy_replica_that_may_be_healed_is_not_replaced_yet() -> None:
    """A repair in place moves a chunk; a copy moves a container."""
    hoping = case("C C U", healable_holders=frozenset({"dn3"}))
    lost_one = case("C U", healable_holders=frozenset({"dn2"}))

    assert (HealthState.UNDER_REPLICATED, 0) == (needs(hoping).health, needs(hoping).copies)
    assert 1 == needs(lost_one).copies


@pytest.mark.parametrize(
    ("words", "condition", "copies", "surplus"),
    [
        ("C", HealthState.UNDER_REPLICATED, 1, 0),
        ("C C", HealthState.HEALTHY, 0, 0),
        ("C C C", HealthState.HEALTHY, 0, 0),
        ("C C C C", HealthState.HEALTHY, 0, 0),
        ("C C C C C", HealthState.OVER_REPLICATED, 0, 1),
        (
            "C C C C C?",
            HealthState.OVER_REPLICATED,
            0,
            0,
        ),  # four answer: who is silent is no witness
        ("C C/d C/d", HealthState.UNDER_REPLICATED, 1, 0),
        ("C C/e C/e C/e", HealthState.UNDER_REPLICATED, 1, 0),
    ],
)
def test_inside_a_band_nothing_is_copied_and_nothing_removed(
    words: str, condition: HealthState, copies: int, surplus: int
) -> None:
    """With two to four around three, a node that comes and goes costs nothing."""
    judged = needs(case(words), enough_copies=2, most_copies=4)

    assert (condition, copies, surplus) == (judged.health, judged.copies, judged.surplus)
