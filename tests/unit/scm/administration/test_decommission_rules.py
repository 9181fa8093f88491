"""When a datanode may be switched off: the tables of the documents, and what they leave out."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from health.rules import Rules
from scm.administration.decommission_rules import DONE, ReplicaNeed, lock_out, violations
from scm.administration.decommission_rules import need as need_of
from scm.cluster.allocate import TargetCandidate
from scm.replication.health.live_judge import DepartureImpact
from scm.state.entities import ContainerState, OpState
from tests.support.control.judged_case import need, obstacle
from tests.support.control.judged_container import JudgedContainer
from tests.support.control.replica_words import case, shards
from tests.support.control.scm_world import container

GIB = 1024**3
LEAVE, REST = OpState.DECOMMISSIONING, OpState.ENTERING_MAINTENANCE


def texts(needs: Sequence[ReplicaNeed], remaining: Collection[TargetCandidate]) -> list[str]:
    """Return the violations without the names of their checks."""
    return [text for _check, text in violations(needs, remaining)]


@pytest.mark.parametrize(
    ("row", "words", "may_leave"),
    [
        ("all copies made", "C C C C/d", True),
        ("S2.44", "C C C/d", False),
        ("S2.58", "C/d", False),
        ("S2.58 copied", "C C C C/d", True),
        ("three at once, nothing copied", "C/d C/d C/d", False),
        ("three at once, all copied", "C/d C/d C/d C C C", True),
        ("it died meanwhile", "C C C C/d!", True),
        ("S2.48 maintenance beside", "C C/d C/m", False),
        ("with the default of two online", "C C/e C", True),
        ("S2.53 all rest", "C/e C/e C/e", False),
        ("MAINTx4", "C/e C/e C/e C/e", False),
        ("two of three rest", "C C/e C/e", False),
        ("S2.45", "C C! C/d", False),
        ("S2.46", "C! C/d C/d", False),
        ("S2.47 as meant", "C C C/e", True),
        ("S2.49", "C/d C/d C/d", False),
        ("S2.52", "C! C/e C!", False),
        ("S2.55", "C C C C/e", True),
        ("S2.56", "C C C/e C/e", True),
        ("S2.57b with the default of two online", "C C/e", False),
        ("the others are dead", "C! C! C/d", False),
        ("unhealthy elsewhere", "C C U C/d", False),
        ("3.8: only unhealthy ones", "U/d", False),
        ("only unhealthy ones, as many as needed", "U U U U/d", True),
        ("none left", "", False),
    ],
)
def test_every_container_must_be_safe_without_the_node(
    row: str, words: str, may_leave: bool
) -> None:
    """`d`: to be decommissioned, `e`: enters maintenance; two replicas stay online."""
    assert may_leave is (obstacle(case(words)) is None), row


@pytest.mark.parametrize("minimum", [1, 2])
def test_maintenance_minimum_is_configurable(minimum: int) -> None:
    """With a minimum of one, a container with two replicas needs no copy."""
    given = case("C C/e C/e")

    assert (minimum == 1) is (obstacle(given, maintenance_min=minimum) is None)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (ContainerState.OPEN, "unclosed"),
        (ContainerState.CLOSING, "unclosed"),
        (ContainerState.QUASI_CLOSED, None),
        (ContainerState.DELETING, None),
        (ContainerState.DELETED, None),
    ],
)
def test_open_container_holds_its_nodes(state: ContainerState, expected: str | None) -> None:
    """A container under deletion does not."""
    assert expected is obstacle(case("Q Q Q Q/d", container=container(state)))


def test_pending_copies_are_not_counted_on() -> None:
    """Pending copies may fail."""
    assert "too_few" == obstacle(case("C C C/d", adds=("dn9",)))


class TestNeeds:
    """What is asked of the nodes that stay, for every scheme."""

    @pytest.mark.parametrize(
        ("row", "given", "op_state", "expected"),
        [
            ("three copies, one leaves", case("C C C"), LEAVE, (3, 1_000, False, False)),
            ("a node that rests costs nothing", case("C C C"), REST, (2, 0, False, False)),
            ("the only one", case("C"), LEAVE, (3, 3_000, False, True)),
            ("the only one rests", case("C"), REST, (2, 2_000, False, True)),
            ("one is dead, one silent", case("C C! C?"), LEAVE, (3, 2_000, False, True)),
            ("it is dead itself", case("C! C! C!"), LEAVE, (3, 0, True, False)),
            ("five shards", shards("C#1 C#2 C#3 C#4 C#5"), LEAVE, (5, 1_000, False, False)),
            ("four stay online", shards("C#1 C#2 C#3 C#4 C#5"), REST, (4, 0, False, False)),
            ("three are left", shards("C#1 C#2 C#3"), REST, (4, 2_000, False, True)),
            ("too few to compute", shards("C#1 C#2 C#3!"), LEAVE, (5, 4_000, True, False)),
        ],
    )
    def test_need_of_one_container_is_computed(
        self,
        row: str,
        given: JudgedContainer,
        op_state: OpState,
        expected: tuple[int, int, bool, bool],
    ) -> None:
        """The result is the nodes, the bytes to copy, whether a copy is impossible, and whether
        the container is locked out.
        """
        found = need(given, frozenset({"dn1"}), op_state)

        assert expected == (
            found.online_count,
            found.copied_bytes,
            found.is_stuck,
            found.is_locked,
        ), row

    @pytest.mark.parametrize(
        ("given", "names", "op_state", "copied_bytes"),
        [
            (shards("C#1 C#2 C#3 C#4 C#5"), "dn1 dn2", REST, 1_000),  # one more than data online
            (shards("C#1 C#2 C#3 C#4 C#5"), "dn1 dn2 dn3", REST, 2_000),
            (shards("C#1 C#2 C#3 C#4 C#5"), "dn1 dn2", LEAVE, 2_000),
        ],
    )
    def test_replicas_left_behind_by_several_nodes_are_copied(
        self, given: JudgedContainer, names: str, op_state: OpState, copied_bytes: int
    ) -> None:
        """For nodes in maintenance, only the minimum that must stay online is copied."""
        found = need(given, frozenset(names.split()), op_state)

        assert copied_bytes == found.copied_bytes

    @pytest.mark.parametrize(
        ("op_state", "factor", "scheme", "rules", "expected"),
        [
            (LEAVE, 3, "", Rules(), 3),
            (REST, 3, "", Rules(), 2),
            (REST, 3, "", Rules(maintenance_min=3), 3),
            (REST, 3, "", Rules(maintenance_min=4), 3),  # never more than there should be
            (REST, 1, "", Rules(), 1),
            (REST, 3, "", Rules(ec_redundancy=2), 2),  # says nothing of whole copies
            (LEAVE, 9, "rs-6-3-1024k", Rules(), 9),
            (REST, 9, "rs-6-3-1024k", Rules(), 7),
            (REST, 9, "rs-6-3-1024k", Rules(ec_redundancy=2), 8),
            (REST, 9, "rs-6-3-1024k", Rules(ec_redundancy=0), 6),
            (REST, 9, "rs-6-3-1024k", Rules(ec_redundancy=4), 9),
            (REST, 9, "rs-6-3-1024k", Rules(maintenance_min=5), 7),  # nor this of shards
        ],
    )
    def test_a_node_that_leaves_asks_for_all_and_one_that_rests_for_fewer(
        self, op_state: OpState, factor: int, scheme: str, rules: Rules, expected: int
    ) -> None:
        """The resting node asks for the number of replicas that the rules keep online meanwhile."""
        box = replace(container(replication_factor=factor), scheme=scheme)

        found = need_of(box, DepartureImpact(1, 0, False, False), op_state, rules, size_bytes=10)

        assert (expected, scheme or f"{factor} replicas") == (found.online_count, found.scheme)

    @pytest.mark.parametrize(
        ("state", "is_stuck", "expected"),
        [
            (ContainerState.CLOSED, True, True),
            (ContainerState.QUASI_CLOSED, True, True),
            (ContainerState.CLOSED, False, False),
            (ContainerState.OPEN, True, False),  # it is copied once it is closed
            (ContainerState.CLOSING, True, False),
            (ContainerState.DELETING, True, False),
        ],
    )
    def test_only_what_is_closed_lacks_what_cannot_be_made(
        self, state: ContainerState, is_stuck: bool, expected: bool
    ) -> None:
        """A container that is being written or deleted is not copied."""
        loss = DepartureImpact(7, 0, is_stuck, False)

        found = need_of(container(state, container_id=7), loss, LEAVE, Rules(), size_bytes=10)

        assert (7, expected) == (found.container_id, found.is_stuck)

    def test_replicas_to_copy_count_their_bytes(self) -> None:
        """The lock-out of the container is passed on."""
        found = need_of(
            container(), DepartureImpact(1, 2, False, True), LEAVE, Rules(), size_bytes=10
        )

        assert (20, True) == (found.copied_bytes, found.is_locked)

    @pytest.mark.parametrize(
        ("words", "locked"), [("C C C", 0), ("C C", 1), ("C C? C", 0), ("C C U", 1)]
    )
    def test_several_nodes_at_once_lock_out_what_one_would_not(
        self, words: str, locked: int
    ) -> None:
        """Nodes that leave together are judged together, not one after the other."""
        both = need(case(words), frozenset({"dn1", "dn2"}), REST)

        assert bool(locked) is both.is_locked
        assert bool(locked) is bool(lock_out([both]))


class TestViolations:
    def nodes(self, count: int) -> list[TargetCandidate]:
        """Nodes that are left, with one GiB each."""
        return [TargetCandidate(f"dn{i}", "/r", GIB, GIB, GIB, 0, 0) for i in range(count)]

    def test_violations_name_each_scheme_with_its_shortage(self) -> None:
        """The violations are the nodes for each scheme, the copies that cannot be made, and the
        space for all.
        """
        needs = [
            ReplicaNeed(1, "3 replicas", 3, 2 * GIB),
            ReplicaNeed(2, "3 replicas", 3, 0),
            ReplicaNeed(3, "rs-3-2-1024k", 5, GIB),
            ReplicaNeed(4, "rs-6-3-1024k", 9, GIB, is_stuck=True),
        ]

        assert [
            "rs-3-2-1024k: 5 nodes in service are needed for 1 containers, 3 would be left",
            "rs-6-3-1024k: 9 nodes in service are needed for 1 containers, 3 would be left",
            "rs-6-3-1024k: 1 containers lack replicas that can be made from nothing: 4",
            "4.0 GiB would have to be copied (3 replicas: 2.0 GiB, rs-3-2-1024k: 1.0 GiB, "
            "rs-6-3-1024k: 1.0 GiB), the nodes that are left have 3.0 GiB free",
        ] == texts(needs, self.nodes(3))

    def test_sufficient_nodes_and_space_are_no_violation(self) -> None:
        """There are just enough nodes and just enough space."""
        needs = [
            ReplicaNeed(1, "3 replicas", 3, 2 * GIB),
            ReplicaNeed(3, "rs-3-2-1024k", 5, 3 * GIB),
        ]

        assert [] == texts(needs, self.nodes(5))

    def test_nodes_without_containers_have_no_violation(self) -> None:
        """The nodes may leave even if they are the last ones."""
        assert [] == violations([], [])
        full = TargetCandidate("dn1", "/r", GIB, 0, 0, GIB, 0)
        assert [] == violations([ReplicaNeed(1, "1 replicas", 1)], [full])

    def test_only_containers_that_lack_nodes_are_counted(self) -> None:
        """Those that the nodes that are left are just enough for are not among them."""
        needs = [
            ReplicaNeed(1, "3 replicas", 3),
            ReplicaNeed(2, "3 replicas", 2),
            ReplicaNeed(3, "3 replicas", 4),
        ]

        assert [
            "3 replicas: 4 nodes in service are needed for 2 containers, 2 would be left"
        ] == texts(needs, self.nodes(2))

    def test_only_schemes_with_something_to_copy_are_named(self) -> None:
        """Beside what all of it takes."""
        needs = [ReplicaNeed(1, "1 replicas", 1, 2 * GIB), ReplicaNeed(2, "3 replicas", 1)]

        assert [
            "2.0 GiB would have to be copied (1 replicas: 2.0 GiB), "
            "the nodes that are left have 1.0 GiB free"
        ] == texts(needs, self.nodes(1))

    def test_room_that_is_promised_is_not_free(self) -> None:
        """A node with more promised than free takes no room from the others."""
        full = TargetCandidate("full", "/r", GIB, GIB, GIB, 0, 2 * GIB)
        half = TargetCandidate("half", "/r", GIB, GIB, GIB, 0, GIB // 2)
        one = [ReplicaNeed(1, "1 replicas", 1, GIB // 2 + 1)]

        assert [] == violations([ReplicaNeed(1, "1 replicas", 1, GIB // 2)], [full, half])
        [found] = texts(one, [full, half])
        assert found.endswith("the nodes that are left have 512.0 MiB free")

    def test_a_message_names_five_containers_at_most(self) -> None:
        """The message has the first ids, and the number of containers."""
        needs = [
            ReplicaNeed(number, "1 replicas", 1, is_stuck=True, is_locked=True)
            for number in range(9, 2, -1)
        ]

        assert [
            "1 replicas: 7 containers lack replicas that can be made from nothing: 3, 4, 5, 6, 7"
        ] == texts(needs, self.nodes(1))
        assert (
            "7 containers cannot be read without them until they are copied: 3, 4, 5, 6, 7"
        ) == lock_out(needs)

    def test_lock_out_message_counts_only_locked_containers(self) -> None:
        """Only containers that were readable until then are counted."""
        free, locked = (
            ReplicaNeed(1, "3 replicas", 3),
            ReplicaNeed(2, "3 replicas", 3, is_locked=True),
        )

        assert "" == lock_out([free])
        assert lock_out([free, locked]).startswith("1 containers")
        assert lock_out([free, locked]).endswith(": 2")


def test_leaving_states_have_one_final_state_each() -> None:
    """The final states lead nowhere by themselves."""
    assert OpState.DECOMMISSIONED is DONE[LEAVE]
    assert OpState.IN_MAINTENANCE is DONE[REST]
    assert not set(DONE) & set(DONE.values())
