"""From OPEN to CLOSED, as transcripts a support engineer could write."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from merkle.replica import ReplicaState
from scm.cluster.lifecycle import (
    NEXT,
    CloseCommand,
    ContainerEvent,
    advance,
    close_at,
    closes_due,
    end_writes,
    is_complete,
    is_written,
    with_observed_state,
    without_replica,
)
from scm.state.entities import Container, ContainerState, Replica
from tests.support.control.scm_world import container, replica

LETTERS = {
    "O": ReplicaState.OPEN,
    "G": ReplicaState.CLOSING,
    "Q": ReplicaState.QUASI_CLOSED,
    "C": ReplicaState.CLOSED,
    "U": ReplicaState.UNHEALTHY,
    "R": ReplicaState.RECOVERING,
}
OPEN, CLOSING = ContainerState.OPEN, ContainerState.CLOSING
QUASI_CLOSED, CLOSED = ContainerState.QUASI_CLOSED, ContainerState.CLOSED
DELETED = ContainerState.DELETED


def replicas(text: str) -> tuple[Replica, ...]:
    """Read `C5=7 Q4`: state, bcsid, root; on dn1, dn2, ... in order. `U5!` cannot be loaded."""
    made = []
    for i, word in enumerate(text.split()):
        head, _, root = word.rstrip("!").partition("=")
        made.append(
            replica(
                f"dn{i + 1}",
                LETTERS[head[0]],
                bcsid=int(head[1:]),
                root=int(root) if root else None,
                load_error="damaged" if word.endswith("!") else "",
            )
        )
    return tuple(made)


def seen(before: Container, text: str) -> Container:
    """Observe replicas at a later time."""
    return with_observed_state(before, replicas(text), now_ms=99)


class TestObserve:
    @pytest.mark.parametrize(
        ("before", "reports", "after"),
        [
            (OPEN, "O1 O1 O1", OPEN),
            (OPEN, "", OPEN),
            (OPEN, "R1", OPEN),
            (OPEN, "O5 G5 O5", CLOSING),
            (OPEN, "O5 U5 O5", CLOSING),
            (OPEN, "O5 Q4 O5", QUASI_CLOSED),
            (OPEN, "O5 C5 O5", CLOSED),
            (CLOSING, "O5 O5 G5", CLOSING),
            (CLOSING, "C5 O5 O5", CLOSED),
            (CLOSING, "C9 O5 O5", CLOSED),
            (CLOSING, "C4 O5 O5", QUASI_CLOSED),
            (CLOSING, "Q4 O5 O5", QUASI_CLOSED),
            (CLOSING, "U5 U5 U5", QUASI_CLOSED),
            (CLOSING, "U5 O5", CLOSING),
            (CLOSING, "U5 G5", CLOSING),
            (CLOSING, "R5", QUASI_CLOSED),
            (CLOSING, "C5 Q4 U5", CLOSED),
            (QUASI_CLOSED, "Q4 Q4 Q4", QUASI_CLOSED),
            (QUASI_CLOSED, "C5 Q4", CLOSED),
            (QUASI_CLOSED, "C4 Q4", QUASI_CLOSED),
            (QUASI_CLOSED, "O5 O5", QUASI_CLOSED),
            (CLOSED, "O5 Q4 U1", CLOSED),
            (CLOSED, "", CLOSED),
            (DELETED, "O1", DELETED),
            (DELETED, "", DELETED),
        ],
    )
    def test_state_follows_the_reports(
        self, before: ContainerState, reports: str, after: ContainerState
    ) -> None:
        """Committed bcsid is 5; one complete replica closes a container; no state goes back."""
        assert after is seen(container(before, sequence_id=5), reports).state

    @pytest.mark.parametrize(
        ("before", "reports", "expected"),
        [
            (OPEN, "O3 O8 O7", 8),
            (CLOSING, "O3 U9", 5),
            (QUASI_CLOSED, "Q6", 6),
            (CLOSED, "Q9 C5", 5),
        ],
    )
    def test_sequence_id_is_the_highest_committed(
        self, before: ContainerState, reports: str, expected: int
    ) -> None:
        """Commits of replicas raise it until CLOSED. Those of UNHEALTHY ones do not count."""
        assert expected == seen(container(before, sequence_id=5), reports).sequence_id

    def test_the_time_of_a_state_is_when_it_began(self) -> None:
        """A report without news does not touch it."""
        moved = seen(container(CLOSING), "C5")

        assert (99, 1) == (moved.state_since_ms, seen(container(CLOSED), "C5").state_since_ms)

    def test_an_open_container_keeps_its_pipeline_and_a_closing_one_awaits_the_rest(self) -> None:
        """While OPEN all chosen nodes get blocks; afterwards only silent ones are awaited."""
        pipeline = ("dn1", "dn2", "dn3")

        assert pipeline == seen(container(OPEN, pipeline=pipeline), "O1 O1").pipeline
        assert ("dn3",) == seen(container(CLOSING, pipeline=pipeline), "O1 O1").pipeline

    @pytest.mark.parametrize("before", [OPEN, CLOSING])
    def test_the_last_one_that_was_awaited_may_be_the_one_that_is_damaged(
        self, before: ContainerState
    ) -> None:
        """After its report no replica is awaited, and the state changes at once."""
        awaiting = container(before, pipeline=("dn1", "dn2"))

        assert CLOSING is seen(awaiting, "U5").state
        assert QUASI_CLOSED is seen(awaiting, "U5 U5").state

    def test_a_container_nobody_ever_wrote_ends_as_deleted(self) -> None:
        """Every chosen node must have reported none, and nothing may be committed."""
        empty = container(CLOSING, sequence_id=0, pipeline=("dn1", "dn2"), committed_count=0)

        one_left = without_replica(empty, "dn1")
        none_left = without_replica(one_left, "dn2")

        assert CLOSING is seen(one_left, "").state
        assert DELETED is seen(none_left, "").state

    def test_while_one_is_awaited_nobody_says_that_none_can_be_written(self) -> None:
        """The awaited replica may have everything."""
        awaiting = container(CLOSING, pipeline=("dn9",))

        assert CLOSING is seen(awaiting, "U5").state
        assert QUASI_CLOSED is seen(without_replica(awaiting, "dn9"), "U5").state

    @pytest.mark.parametrize(
        ("sequence_id", "committed_count", "reports", "after"),
        [
            (0, 0, "O0", CLOSING),
            (0, 0, "Q3", QUASI_CLOSED),
            (0, 0, "C3", CLOSED),
            (0, 0, "", DELETED),
            (5, 0, "C5", DELETED),
            (0, 1, "C5", DELETED),
        ],
    )
    def test_deleted_container_that_was_never_written_returns_with_a_replica(
        self, sequence_id: int, committed_count: int, reports: str, after: ContainerState
    ) -> None:
        """A container that was written and deleted does not, which is decided elsewhere."""
        before = container(DELETED, sequence_id=sequence_id, committed_count=committed_count)

        found = seen(before, reports)

        assert after is found.state
        assert after is not DELETED or found is before

    def test_unwritten_container_stays_unwritten(self) -> None:
        """Its commit id does not rise when it is observed."""
        empty = container(CLOSING, sequence_id=0, pipeline=("dn1",), committed_count=0)

        assert empty == seen(empty, "")

    def test_container_under_deletion_is_left_unchanged(self) -> None:
        """The states of its replicas and the awaited nodes do not matter."""
        going = container(ContainerState.DELETING, pipeline=("dn1",))

        assert going is seen(going, "C9 Q9")

    def test_a_container_with_committed_keys_never_ends_as_unwritten(self) -> None:
        """All replicas missing is a loss to be shown, not an empty container."""
        lost = container(CLOSING, pipeline=(), committed_count=1)

        assert CLOSING is seen(lost, "").state

    @settings(deadline=None)
    @example(OPEN, ["U5"] * 9)
    @given(
        st.sampled_from(ContainerState),
        st.lists(st.sampled_from(["O1", "O9", "G5", "Q4", "Q5=7", "C5=7", "C4", "U5", "R1"])),
    )
    def test_observing_twice_changes_nothing_more(
        self, state: ContainerState, words: list[str]
    ) -> None:
        """The same reports have the same effect, however often they come."""
        once = seen(container(state, pipeline=("dn1", "dn9")), " ".join(words))

        assert once == seen(once, " ".join(words))


class TestTable:
    def test_every_pair_not_in_the_table_changes_nothing(self) -> None:
        """All states and events, exhaustively."""
        for state in ContainerState:
            for event in ContainerEvent:
                before = container(state)
                after = advance(before, event, now_ms=99)
                assert after.state is NEXT.get((state, event), state)
                assert (after is before) == ((state, event) not in NEXT)

    def test_ending_writes_seals_and_says_why(self) -> None:
        """Once is enough; the first reason stays."""
        closing = end_writes(container(OPEN), "idle", now_ms=9)

        assert (CLOSING, True, "idle") == (closing.state, closing.is_sealed, closing.close_reason)
        assert closing is end_writes(closing, "again", now_ms=10)
        assert 9 == closing.state_since_ms

    @pytest.mark.parametrize("state", [CLOSING, QUASI_CLOSED])
    def test_closing_at_a_commit_gives_up_later_ones(self, state: ContainerState) -> None:
        """The container is closed at that commit, with the reason."""
        found = close_at(container(state), 3, "forced", now_ms=9)

        assert (CLOSED, 9, 3) == (found.state, found.state_since_ms, found.sequence_id)
        assert (True, "forced") == (found.is_sealed, found.close_reason)

    def test_node_without_a_replica_is_not_awaited(self) -> None:
        """The other nodes are."""
        found = without_replica(container(CLOSING, pipeline=("dn1", "dn2")), "dn1")

        assert ("dn2",) == found.pipeline

    @pytest.mark.parametrize(
        ("sequence_id", "committed_count", "expected"),
        [(0, 0, False), (1, 0, True), (0, 1, True), (5, 5, True)],
    )
    def test_written_is_what_ever_held_anything(
        self, sequence_id: int, committed_count: int, expected: bool
    ) -> None:
        """A commit was seen by a datanode, or acknowledged to a writer."""
        box = container(sequence_id=sequence_id, committed_count=committed_count)

        assert expected is is_written(box)

    @pytest.mark.parametrize(
        ("words", "expected"), [("C5", True), ("C6", True), ("C4", False), ("Q5", False)]
    )
    def test_complete_is_what_is_closed_with_all_that_was_committed(
        self, words: str, expected: bool
    ) -> None:
        """The container has 5."""
        [held] = replicas(words)

        assert expected is is_complete(container(), held)


class TestClosesDue:
    @pytest.mark.parametrize(
        ("state", "reports", "expected"),
        [
            (OPEN, "O5 O5", []),
            (DELETED, "O5", [("dn1", False)]),
            (DELETED, "O6 O5! C5 Q4", []),
            (ContainerState.DELETING, "O5", []),
            (CLOSING, "O5 G3 O5", [("dn1", False), ("dn2", False), ("dn3", False)]),
            (CLOSED, "C5=7 O5 C5=7", [("dn2", False)]),
            (CLOSED, "C5=7 U5=8", []),
            # Caught up: bcsid reached and root equal to a complete CLOSED replica's.
            (CLOSED, "C5=7 Q5=7", [("dn2", True)]),
            (CLOSED, "C5=7 Q6=7", [("dn2", True)]),
            (CLOSED, "C5=7 Q4=7", []),
            (CLOSED, "C5=7 C5=8 Q5=8", [("dn3", True)]),  # one like it is enough
            (CLOSED, "C5 C5=8 Q5=8", [("dn3", True)]),
            (CLOSED, "C4=8 C5=7 Q5=8", []),  # its like lacks a commit
            (CLOSED, "C5=7 Q5=8", []),
            (CLOSED, "C5=7 Q5", []),
            (CLOSED, "C5 Q5=7", []),
            # No complete CLOSED replica to compare with: the bcsid says it, the datanode judges.
            (CLOSED, "C4=7 Q5=7", [("dn2", False)]),
            (QUASI_CLOSED, "C4=8 Q5=7", [("dn2", False)]),
            (QUASI_CLOSED, "Q5=7 Q4=8 U5", [("dn1", False)]),
            (QUASI_CLOSED, "Q4=8 Q3=7", []),
            # Most origins must be seen, by replicas that can be loaded, and none may have more.
            (QUASI_CLOSED, "Q5", []),
            (QUASI_CLOSED, "Q5 Q5", [("dn1", False), ("dn2", False)]),
            (QUASI_CLOSED, "Q5 U4", [("dn1", False)]),
            (QUASI_CLOSED, "Q5 U5!", []),
            (QUASI_CLOSED, "Q5 O4", [("dn2", False)]),  # open: its origin is seen once it is closed
            (QUASI_CLOSED, "Q5 R5", []),
            (QUASI_CLOSED, "Q5 Q5 Q5 U6", []),
            (QUASI_CLOSED, "Q5 Q5 U6!", []),
            (CLOSED, "Q5 U6", [("dn1", False)]),  # its state says that this was settled
            (CLOSING, "U5! O5", [("dn2", False)]),
        ],
    )
    def test_orders(
        self, state: ContainerState, reports: str, expected: Sequence[tuple[str, bool]]
    ) -> None:
        """Each row has the replicas that get a close command, and whether it is forced. The
        committed bcsid is 5.
        """
        orders = closes_due(container(state, sequence_id=5), replicas(reports))

        assert [CloseCommand(node, 5, force) for node, force in expected] == orders

    def test_a_chosen_node_that_never_reported_is_told_too(self) -> None:
        """The node may have a replica whose report is still on its way."""
        orders = closes_due(container(CLOSING, pipeline=("dn9",)), replicas("O5"))

        assert [CloseCommand(node, 5, force=False) for node in ("dn1", "dn9")] == orders

    def test_a_chosen_node_that_reported_is_told_by_what_it_has(self) -> None:
        """Nothing, if it cannot load its replica, or has closed it behind the others."""
        awaiting = container(QUASI_CLOSED, pipeline=("dn1", "dn2", "dn3"))

        orders = closes_due(awaiting, replicas("O5! Q4 C5"))

        assert [] == orders

    def test_another_tombstone_set_is_not_caught_up(self) -> None:
        """Equal roots with different tombstones are not the same data."""
        closed, behind = replicas("C5=7 Q5=7")
        assert behind.tree is not None
        other = replace(behind, tree=replace(behind.tree, tombstones_checksum=42))

        assert [] == closes_due(container(CLOSED, sequence_id=5), (closed, other))

    def test_shard_witness_must_have_the_same_index(self) -> None:
        """Shards are never equal, so a shard that is up to date waits for no other one."""
        first, second, third = replicas("C5=7 Q5=8 Q5=9")
        coded = replace(container(CLOSED), scheme="rs-3-2-1024k", replication_factor=5)
        shards = [replace(first, replica_index=1), replace(second, replica_index=2)]
        twin = replace(third, replica_index=1)

        orders = closes_due(coded, [*shards, twin])

        assert [CloseCommand("dn2", 5, force=False)] == orders

    def test_shard_with_the_last_known_commit_is_closed(self) -> None:
        """Its cells are in no other shard, however many are seen."""
        held = [replace(r, replica_index=i) for i, r in enumerate(replicas("Q5 Q4 U6"), 1)]
        coded = replace(container(QUASI_CLOSED), scheme="rs-3-2-1024k", replication_factor=5)

        assert [CloseCommand("dn1", 5, force=False)] == closes_due(coded, held)

    @pytest.mark.parametrize(
        ("reports", "acknowledged_bcsid", "expected"),
        [
            ("C5#1 Q4#2", 4, ["dn2"]),
            ("C5#1 Q4#2", 3, ["dn2"]),
            ("C5#1 Q3#2 Q4#2", 3, ["dn2", "dn3"]),
            ("C5#1 Q4#2", 5, []),
            ("C5#1 Q4#2", None, []),
            ("C5#1 Q4#2 C5#2", 4, []),
            ("C5#1 Q4#2!", 4, []),
            ("C5#1 U4#2", 4, []),
        ],
    )
    def test_a_shard_that_lacks_only_what_nobody_was_told_of_is_closed(
        self, reports: str, acknowledged_bcsid: int | None, expected: Sequence[str]
    ) -> None:
        """The shard then takes the container's last commit id. Whole copies are made equal by a
        reconcile instead.
        """
        pairs = [word.partition("#") for word in reports.split()]
        held = replicas(" ".join(head + "!" * rest.endswith("!") for head, _, rest in pairs))
        shards = [
            replace(one, replica_index=int(rest[0]))
            for one, (_, _, rest) in zip(held, pairs, strict=True)
        ]
        coded = replace(container(CLOSED), scheme="rs-3-2-1024k", replication_factor=5)

        orders = closes_due(coded, shards, acknowledged_bcsid=acknowledged_bcsid)
        copies = [one for one in held if not is_complete(container(CLOSED), one)]
        of_copies = closes_due(container(CLOSED), copies, acknowledged_bcsid=acknowledged_bcsid)
        quasi = replace(coded, state=QUASI_CLOSED)
        before = closes_due(quasi, shards, acknowledged_bcsid=acknowledged_bcsid)

        assert [CloseCommand(node, 5, force=True) for node in expected] == orders
        assert [] == of_copies == [one for one in before if one.force]
