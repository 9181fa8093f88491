"""How a container that no replica holds whole may be closed, and what closing would give up."""

from dataclasses import replace
from typing import Any

import pytest

from merkle.replica import ReplicaState
from scm.cluster.container_context import PlacedReplica
from scm.containers.close_rules import Closure, closure, standing
from scm.state.entities import Container, ContainerState
from tests.support.control.replica_words import placed, shards
from tests.support.control.scm_world import container, replica

CLOSING, QUASI_CLOSED = ContainerState.CLOSING, ContainerState.QUASI_CLOSED


def box(state: ContainerState = QUASI_CLOSED, replication_factor: int = 3) -> Container:
    """Return a container whose writer committed up to 9."""
    return container(state, sequence_id=9, replication_factor=replication_factor)


def decided(of: Container, held: tuple[PlacedReplica, ...], **more: Any) -> Closure:
    """Return how a container would be closed; nothing is acknowledged unless a test says so."""
    found = closure(of, held, **{"acknowledged_bcsid": 0, **more})
    assert found is not None
    return found


def coded(words: str) -> tuple[Container, tuple[PlacedReplica, ...]]:
    """Return a quasi-closed RS(3,2) container committed up to 9, and its shards."""
    given = shards(words)
    return replace(given.container, state=QUASI_CLOSED, sequence_id=9), given.placed


def nodes(of: tuple[PlacedReplica, ...]) -> list[str]:
    """Return where replicas are."""
    return [p.datanode_id for p in of]


def unloadable(p: PlacedReplica) -> PlacedReplica:
    """Return a replica that its datanode cannot load."""
    return replace(p, replica=replace(p.replica, load_error="no descriptor"))


@pytest.mark.parametrize(
    ("words", "bcsid", "holders", "beyond"),
    [
        ("Q@4 Q@4 Q@3", 4, "dn1 dn2", ""),
        ("Q@3 C@4 Q@3", 4, "dn2", ""),
        ("Q@8 Q@8 Q@8", 8, "dn1 dn2 dn3", ""),  # one short of the last commit
        ("Q@0 Q@0", 0, "dn1 dn2", ""),  # closed with nothing in it
        ("Q@4 U@9 Q@4", 4, "dn1 dn3", "dn2"),  # nobody can say that a damaged one is right
        ("Q@4 U@4 Q@3", 4, "dn1", ""),
        ("Q@4 O@7 Q@4", 4, "dn1 dn3", "dn2"),
        ("Q@4 Q@4 Q@9!", 4, "dn1 dn2", "dn3"),  # died with its node, and may come back
        ("Q@4 R@9", 4, "dn1", "dn2"),
        ("U@4 U@9 U@9", 9, "dn2 dn3", ""),  # no closed one: the damaged ones are all there is
        ("O@7 U@4", 4, "dn2", "dn1"),
        ("O@7 O@3", 7, "dn1", ""),
        ("Q@9! O@7", 7, "dn2", "dn1"),
    ],
)
def test_forced_close_takes_the_last_commit_that_a_replica_has(
    words: str, bcsid: int, holders: str, beyond: str
) -> None:
    """Replicas with more are kept, wherever they are. Nine commits are known."""
    found = decided(box(), placed(words))

    assert (bcsid, 9) == (found.bcsid, found.last_bcsid)
    assert holders.split() == list(found.holders)
    assert beyond.split() == nodes(found.beyond)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ContainerState.OPEN, "Q@4 Q@4 Q@4"),  # its writes have not ended
        (ContainerState.DELETING, "Q@4 Q@4 Q@4"),
        (ContainerState.DELETED, "Q@4 Q@4 Q@4"),
        (QUASI_CLOSED, "Q@4 Q@9 Q@4"),  # one has all, and most origins are seen
        (QUASI_CLOSED, "Q@9 U@9"),
        (ContainerState.CLOSED, "Q@9"),  # its state says that this was settled
        (QUASI_CLOSED, "C@9 U@10"),
        (QUASI_CLOSED, "C@10"),
        (CLOSING, "O@4 C@9"),
        (QUASI_CLOSED, "Q@4 Q@4 Q@9/m!"),  # off for maintenance, and expected back
        (QUASI_CLOSED, ""),
        (QUASI_CLOSED, "Q@4! U@4!"),
        (QUASI_CLOSED, "Q@4! R@4"),  # only an unfinished copy is left: there is no commit in it
    ],
)
def test_container_that_closes_by_itself_needs_no_decision(
    state: ContainerState, words: str
) -> None:
    """There is no decision either for a container without replicas, while it is written, or when
    it is being deleted.
    """
    assert closure(box(state), placed(words), acknowledged_bcsid=0) is None


@pytest.mark.parametrize("state", [CLOSING, QUASI_CLOSED, ContainerState.CLOSED])
def test_every_state_between_writing_and_deleting_can_be_short_of_commits(
    state: ContainerState,
) -> None:
    """A closed container is, if its only complete replica was lost since."""
    assert 4 == decided(box(state), placed("Q@4")).bcsid


def test_unloadable_replica_is_no_witness_for_a_close() -> None:
    """Its claim to have everything is not enough, and it is kept."""
    good, bad = placed("Q@4 Q@9")

    found = decided(box(), (good, unloadable(bad)))

    assert (4, 1, ["dn2"]) == (found.bcsid, found.origin_count, nodes(found.beyond))
    assert closure(box(), (unloadable(bad),), acknowledged_bcsid=0) is None


@pytest.mark.parametrize(
    ("words", "factor", "count", "is_complete", "obstacle"),
    [
        ("Q@4 Q@4 Q@3", 3, 3, True, ""),
        ("Q@4 U@3", 3, 2, False, ""),  # a damaged one counts: its origin is seen
        ("Q@4 Q@4 Q@4!", 3, 2, False, ""),
        ("Q@4 Q@4 R@4", 3, 2, False, ""),
        ("Q@4", 3, 1, False, "only 1 of 3 origins are seen"),
        ("Q@4", 2, 1, False, "only 1 of 2 origins are seen"),  # one of two is no majority
        ("Q@4 Q@4", 4, 2, False, "only 2 of 4 origins are seen"),
        ("Q@4 Q@4 Q@4", 5, 3, False, ""),
        ("Q@4", 1, 1, True, ""),
        ("Q@4 Q@4 Q@4 Q@4", 3, 4, True, ""),  # more than were chosen: one was replaced
    ],
)
def test_most_origins_must_be_seen(
    words: str, factor: int, count: int, is_complete: bool, obstacle: str
) -> None:
    """An acknowledged write is on most of them. When all are seen, no one is awaited."""
    found = decided(box(replication_factor=factor), placed(words))

    assert (count, factor) == (found.origin_count, found.required_count)
    assert (is_complete, obstacle) == (found.is_complete, found.obstacle)


@pytest.mark.parametrize(
    ("words", "bcsid", "obstacle"),
    [
        ("Q@9", 9, "only 1 of 3 origins are seen"),
        ("Q@9 Q@9! Q@9!", 9, "only 1 of 3 origins are seen"),
        ("Q@9 Q@9 U@10", 9, "the damaged replica on dn3 has more commits"),
        ("Q@9 O@4", 9, "dn2 has yet to close its replica"),
    ],
)
def test_a_replica_with_the_last_known_commit_needs_a_person_against_the_rule(
    words: str, bcsid: int, obstacle: str
) -> None:
    """The container does not close by itself, so `suture scm close` gives the reason, and force
    gives nothing up.
    """
    found = decided(box(), placed(words))

    assert (obstacle, bcsid, 9) == (found.obstacle, found.bcsid, found.last_bcsid)


def test_a_replica_that_cannot_be_loaded_blocks_with_what_it_has() -> None:
    """Its commits may be real; as an origin it is not seen."""
    first, second, third = placed("Q@4 Q@4 Q@9")

    found = decided(box(), (first, second, unloadable(third)))

    assert "the damaged replica on dn3 has more commits" == found.obstacle
    assert (4, 2) == (found.bcsid, found.origin_count)


def test_copies_of_one_origin_are_one_origin() -> None:
    """The copies have the commits of the same datanode. Without its name the holder counts as
    the origin.
    """
    copies = tuple(
        replace(p, replica=replace(p.replica, origin_datanode_id="dn7")) for p in placed("Q@4 Q@4")
    )
    unnamed = tuple(
        replace(p, replica=replace(p.replica, origin_datanode_id="")) for p in placed("Q@4 Q@4")
    )

    assert 1 == decided(box(), copies).origin_count
    assert 2 == decided(box(), unnamed).origin_count


@pytest.mark.parametrize(
    ("state", "words", "more", "obstacle"),
    [
        (QUASI_CLOSED, "Q@4 Q@4 O@4", {}, "dn3 has yet to close its replica"),
        (QUASI_CLOSED, "Q@4 O@4 O@4", {}, "dn2, dn3 has yet to close its replica"),
        (QUASI_CLOSED, "Q@4 Q@4", {"awaited": ["dn9"]}, "dn9 has yet to close its replica"),
        (
            QUASI_CLOSED,
            "Q@4 Q@4 O@4",
            {"awaited": {"dn1"}},
            "dn1, dn3 has yet to close its replica",
        ),
        (CLOSING, "Q@4 Q@4 Q@4", {}, "a datanode has yet to close its replica"),
        (QUASI_CLOSED, "U@9 U@4 U@4", {}, "no replica is closed, all are UNHEALTHY"),
        (
            QUASI_CLOSED,
            "Q@4 Q@4 U@5",
            {"acknowledged_bcsid": 5},
            "an acknowledged commit, 5, would be given up",
        ),
        (QUASI_CLOSED, "Q@4 Q@4 Q@4", {"acknowledged_bcsid": 4}, ""),
        (QUASI_CLOSED, "Q@4 U@5 U@6", {}, "the damaged replica on dn2 has more commits"),
        (QUASI_CLOSED, "Q@4 U@4 U@3", {}, ""),
        (QUASI_CLOSED, "Q@4 U@5", {}, "the damaged replica on dn2 has more commits"),
        (QUASI_CLOSED, "Q@4 Q@4 U@5!", {}, ""),  # it is gone with its node
    ],
)
def test_only_a_person_closes_what_may_lose_something(
    state: ContainerState, words: str, more: dict[str, Any], obstacle: str
) -> None:
    """A close is still pending, or a commit that was acknowledged or seen would be lost."""
    assert obstacle == decided(box(state), placed(words), **more).obstacle


@pytest.mark.parametrize(
    ("words", "bcsid", "holders", "beyond", "count", "obstacle"),
    [
        # The third best of five is what three can read together.
        ("Q@8#1 Q@7#2 Q@6#3 Q@5#4 Q@4#5", 6, "dn1 dn2 dn3", "", 5, ""),
        ("Q@4#1 Q@8#2 Q@8#3 Q@8#4", 8, "dn2 dn3 dn4", "", 4, ""),
        ("Q@8#1 Q@8#2 Q@6#3", 6, "dn1 dn2 dn3", "", 3, ""),
        # Two of one index are one: the better of them is read, whichever comes first.
        ("Q@8#1 Q@6#1 Q@7#2 Q@5#3", 5, "dn1 dn2 dn3 dn4", "", 3, ""),
        ("Q@8#1 Q@2#1 Q@7#2 Q@6#3", 6, "dn1 dn3 dn4", "", 3, ""),
        ("Q@1#3 Q@1#4 Q@1#5", 1, "dn1 dn2 dn3", "", 3, ""),
        ("Q@6#1 Q@8#1 Q@7#2 Q@7#3", 7, "dn2 dn3 dn4", "", 3, ""),
        ("Q@8#1 Q@7#2", 7, "dn1 dn2", "", 2, "only 2 of 5 origins are seen"),
        ("Q@6#1 Q@6#2 Q@6#3 U@8#4", 6, "dn1 dn2 dn3", "dn4", 4, "the damaged replica on dn4"),
        ("Q@6#1 Q@6#2 U@6#3", 6, "dn1 dn2", "", 3, ""),
    ],
)
def test_commit_on_as_many_shards_as_data_is_the_last(
    words: str, bcsid: int, holders: str, beyond: str, count: int, obstacle: str
) -> None:
    """Each index is an origin of its own. Three of five are enough to read, and are a majority."""
    found = decided(*coded(words))

    assert (bcsid, count, 5) == (found.bcsid, found.origin_count, found.required_count)
    assert (holders.split(), beyond.split()) == (list(found.holders), nodes(found.beyond))
    assert found.obstacle.startswith(obstacle)
    assert bool(found.obstacle) is bool(obstacle)


@pytest.mark.parametrize(
    ("seen", "obstacle"), [(6, ""), (5, "only 5 of 9 origins are seen"), (9, "")]
)
def test_origins_required_for_a_code_are_its_data_shards(seen: int, obstacle: str) -> None:
    """Six of nine are required. Five are a majority, but cannot be read."""
    [one] = placed("Q@4")
    held = [
        replace(p, replica=replace(p.replica, datanode_id=f"dn{i}", replica_index=i))
        for i, p in enumerate([one] * seen, 1)
    ]
    wide = replace(box(replication_factor=9), scheme="rs-6-3-1024k")

    found = decided(wide, tuple(held))

    assert (seen, obstacle) == (found.origin_count, found.obstacle)


def test_single_whole_shard_is_no_whole_container() -> None:
    """Only a shard with all commits settles the close."""
    assert closure(*coded("Q@9#1 Q@8#2 Q@8#3"), acknowledged_bcsid=0) is None
    assert closure(*coded("Q@9#1"), acknowledged_bcsid=0) is None
    assert 8 == decided(*coded("U@9#1 Q@8#2 Q@8#3 Q@8#4")).bcsid


def test_kept_replicas_are_named_with_state_and_commit() -> None:
    """The message is for the operator who decides."""
    assert "" == decided(box(), placed("Q@4 Q@4")).ahead_replicas_text
    assert "dn1 is UNHEALTHY at commit 9, dn3 is OPEN at commit 5" == (
        decided(box(), placed("U@9 Q@4 O@5")).ahead_replicas_text
    )


@pytest.mark.parametrize(
    ("state", "bcsid", "load_error", "expected"),
    [
        (ReplicaState.CLOSED, 4, "", ""),
        (ReplicaState.CLOSED, 9, "no descriptor", "dn1 cannot load its replica"),
        (ReplicaState.UNHEALTHY, 9, "", "dn1 is UNHEALTHY"),
        (ReplicaState.OPEN, 9, "", "dn1 is OPEN"),
        (ReplicaState.QUASI_CLOSED, 8, "", "dn1 is QUASI_CLOSED at commit 8 of 9"),
        (
            ReplicaState.QUASI_CLOSED,
            9,
            "",
            "dn1 is QUASI_CLOSED and differs from the CLOSED ones: a reconcile comes first",
        ),
        (
            ReplicaState.QUASI_CLOSED,
            10,
            "",
            "dn1 is QUASI_CLOSED and differs from the CLOSED ones: a reconcile comes first",
        ),
    ],
)
def test_why_a_replica_is_not_closed(
    state: ReplicaState, bcsid: int, load_error: str, expected: str
) -> None:
    """The reason is given if no close of the replica is due. Otherwise it is empty."""
    held = replica("dn1", state, bcsid=bcsid, load_error=load_error)

    assert expected == standing(box(ContainerState.CLOSED), held)
