"""When a datanode may be switched off: the tables of the documents, and what they leave out."""

import pytest

from scm.allocate import Candidate
from scm.facts import ContainerState, OpState
from scm.leaving import DONE, Obstacle, Plan, obstacle, violations
from tests.support.replica_words import case
from tests.support.scm_world import container

GIB = 1024**3


@pytest.mark.parametrize(
    ("row", "words", "may_leave"),
    [
        ("S2.39 all copies made", "C C C C/d", True),
        ("S2.44", "C C C/d", False),
        ("S2.58", "C/d", False),
        ("S2.58 copied", "C C C C/d", True),
        ("S2.17 three at once, nothing copied", "C/d C/d C/d", False),
        ("S2.17 three at once, all copied", "C/d C/d C/d C C C", True),
        ("S2.16 it died meanwhile", "C C C C/d!", True),
        ("S2.48 maintenance beside", "C C/d C/m", False),
        ("S2.14 with the default of two online", "C C/e C", True),
        ("S2.53 all rest", "C/e C/e C/e", False),
        ("MAINTx4", "C/e C/e C/e C/e", False),
        ("S2.81 two of three rest", "C C/e C/e", False),
        ("S2.56", "C C C/e C/e", True),
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
def test_how_many_stay_online_is_configurable(minimum: int) -> None:
    """S2.14: with one, a container with two replicas needs no copy."""
    given = case("C C/e C/e", maintenance_min_count=minimum)

    assert (minimum == 1) is (obstacle(given) is None)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (ContainerState.OPEN, Obstacle.UNCLOSED),
        (ContainerState.CLOSING, Obstacle.UNCLOSED),
        (ContainerState.QUASI_CLOSED, None),
        (ContainerState.DELETING, None),
        (ContainerState.DELETED, None),
    ],
)
def test_what_is_being_written_holds_its_nodes(
    state: ContainerState, expected: Obstacle | None
) -> None:
    """And what is being deleted does not."""
    assert expected is obstacle(case("Q Q Q Q/d", container=container(state)))


def test_pending_copies_are_not_counted_on() -> None:
    """They may fail."""
    assert Obstacle.TOO_FEW is obstacle(case("C C C/d", adds=("dn9",)))


class TestViolations:
    def plan(self, *, is_maintenance: bool = False, copied_bytes: int = 0) -> Plan:
        """One container of three replicas."""
        return Plan(frozenset({"dn1"}), is_maintenance, [container()], copied_bytes)

    def nodes(self, count: int) -> list[Candidate]:
        """Nodes that are left, with one GiB each."""
        return [Candidate(f"dn{i}", "/r", GIB, GIB, GIB, 0, 0) for i in range(count)]

    @pytest.mark.parametrize(
        ("is_maintenance", "left", "copied_bytes", "words"),
        [
            (False, 3, 0, []),
            (False, 2, 0, ["3 nodes in service are needed for 1 containers, 2 would be left"]),
            (True, 2, 0, []),
            (True, 1, 0, ["2 nodes in service are needed for 1 containers, 1 would be left"]),
            (
                False,
                3,
                4 * GIB,
                ["4.0 GiB would have to be copied, the nodes that are left have 3.0 GiB free"],
            ),
        ],
    )
    def test_what_lacks_is_named(
        self, is_maintenance: bool, left: int, copied_bytes: int, words: list[str]
    ) -> None:
        """Nodes for each kind of container, and space (S2.76)."""
        plan = self.plan(is_maintenance=is_maintenance, copied_bytes=copied_bytes)

        assert words == violations(plan, self.nodes(left))


def test_each_way_out_has_one_end() -> None:
    """And the ends lead nowhere by themselves."""
    assert {OpState.DECOMMISSIONED, OpState.IN_MAINTENANCE} == set(DONE.values())
    assert not set(DONE) & set(DONE.values())
