"""What holds a leaving node back."""

from health.departure import FREE, HELD_BY, missing_replicas, obstacles
from health.judge import judge
from health.remaining import answering, is_readable
from health.rules import Rules
from tests.support.verification.judged import cut
from tests.support.verification.snapshots import container, gather

NO, YES = False, True

LEAVING: tuple[tuple[str, str, str, str], ...] = (
    # container, replicas, ops, why its nodes must not leave
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/d", "", "too_few"),  # the first row of all
    ("R CLOSED 10", "C C C/d", "", "too_few"),
    ("R CLOSED 10", "C C C/D", "+", "too_few"),
    ("R CLOSED 10", "C C C/d", "!", "too_few"),  # only an add is progress
    ("R CLOSED 10", "C C C C/d", "", ""),
    ("R CLOSED 10", "C C C C/d", "+", ""),  # nothing is awaited
    ("R CLOSED 10", "C C C/m", "", ""),
    ("R CLOSED 10", "C C/e C/m", "", "too_few"),
    ("R CLOSED 10", "C/d", "", "no_good_replica"),
    ("R CLOSED 10", "C/d C/d", "", "no_good_replica"),
    ("R CLOSED 10", "C/d C?s", "", "too_few"),  # a stale node serves nobody now
    ("R CLOSED 10", "C/d C?r", "", "too_few"),
    ("R CLOSED 10", "C/d U", "", "no_good_replica"),
    ("R CLOSED 10", "C U/d", "", "too_few"),
    ("R CLOSED 10", "C C C U/d", "", ""),
    ("R CLOSED 10", "U U U/d", "", "no_good_replica"),
    ("R CLOSED 10", "U U U U/d", "", ""),  # as many as wanted, and none is whole
    ("R CLOSED 10", "C C O C/d", "", "unclosed"),
    ("R CLOSED 10", "C C G C/d", "", "unclosed"),
    ("R CLOSED 10", "C C C U O/d", "", ""),  # it is not the node itself that counts
    ("R CLOSED 10", "C C C?d/m", "", ""),  # dead, but it will be back
    ("R OPEN 10", "O O O/d", "", "unclosed"),
    ("R OPEN 10", "O/d", "", "unclosed"),
    ("R CLOSING 10", "G G G/d", "", "unclosed"),
    ("R QUASI_CLOSED 10", "Qx3 Q/d", "", ""),
    ("R QUASI_CLOSED 10", "Q/d", "", "no_good_replica"),
    ("R QUASI_CLOSED 10", "Qx2 C Q/d", "", ""),  # it is about to follow
    ("R QUASI_CLOSED 10", "Q@9x3 U@10/d", "", "no_good_replica"),  # vulnerable
    ("R DELETING 10", "C C C/d", "", ""),
    ("R DELETED 10", "C/d", "", ""),
    ("R CLOSED 10", "C!/d", "", ""),  # empty: there is nothing to lose
    ("R CLOSED 10", "C! C/d", "", "too_few"),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/d", "", "too_few"),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/d C#5", "", ""),
    ("EC CLOSED", "C#1 C#2 C#3/d", "", "too_few"),
    ("EC CLOSED", "C#1 C#1/d C#2 C#3/d", "", "too_few"),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 U#5 C#5/d", "", "too_few"),  # a bad twin is none
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/m", "", ""),
    ("EC CLOSED", "C#1 C#2 C#3 C#4/m C#5/m", "", "too_few"),
    ("EC CLOSED", "C#1 C#2 C#3/m", "+#4", "too_few"),
    ("EC CLOSED", "C#1/d C#2", "", "no_good_replica"),
    ("EC CLOSED", "C#1 C#1/d C#2", "", "no_good_replica"),
    ("EC CLOSED", "C#1 C#2 C#3?s C#4/d", "", "too_few"),
    ("EC CLOSED", "C#1 C#2 C#3 C#4?s/d", "", "too_few"),
    ("EC CLOSED", "C#1/d C#2/d C#3/d C#4/d", "", "too_few"),
    ("EC6-3 CLOSED", "C#1 C#2 C#3 C#4 C#5 C#6/d", "", "too_few"),
)


def test_container_with_a_replica_on_a_leaving_node_has_its_stop_condition() -> None:
    """All lines are in one batch, so that no container affects its neighbour."""
    parts = [container(i, *line[:3]) for i, line in enumerate(LEAVING)]

    found = judge(cut(gather(parts)).batch, Rules())

    held = obstacles(found.view, found.counts, found.flags).tolist()
    words = ["" if one == FREE else HELD_BY[one] for one in held]
    assert [(*line[:3], words[i]) for i, line in enumerate(LEAVING)] == list(LEAVING)


def test_a_container_that_the_control_plane_does_not_know_holds_nobody_back() -> None:
    """
    Nobody says how many replicas it should have.
    """
    known, unknown = (container(i, "R CLOSED 10", "C/d") for i in range(2))
    unknown.containers.clear()

    found = judge(cut(gather([known, unknown])).batch, Rules())

    held = obstacles(found.view, found.counts, found.flags).tolist()
    assert [HELD_BY.index("no_good_replica"), FREE] == held


STAYING: tuple[tuple[str, str, str, int, bool], ...] = (
    # container, replicas, ops: how many are to be made, and whether it can be read now
    ("R CLOSED 10", "C C C", "", 0, YES),
    ("R CLOSED 10", "C C C C", "", 0, YES),
    ("R CLOSED 10", "C", "", 2, YES),
    ("R CLOSED 10", "C", "+", 1, YES),  # one is on its way
    ("R CLOSED 10", "C C C/d", "", 1, YES),
    ("R CLOSED 10", "C C C/m", "", 0, YES),
    ("R CLOSED 10", "C C/m C/m", "", 1, YES),  # two stay online
    ("R CLOSED 10", "C?s C?s C?s", "", 0, NO),  # nobody answers
    ("R CLOSED 10", "C?s C C?s", "", 0, YES),
    ("R CLOSED 10", "C?d U C?d", "", 2, NO),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5", "", 0, YES),
    ("EC CLOSED", "C#1 C#2 C#3 C#4", "", 1, YES),
    ("EC CLOSED", "C#1 C#2 C#3", "", 2, YES),
    ("EC CLOSED", "C#1 C#2 C#3 C#4/d C#5/d", "", 2, YES),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/m", "", 0, YES),
    ("EC CLOSED", "C#1 C#2 C#3 C#4/m C#5/m", "", 1, YES),  # one more than data stays online
    ("EC CLOSED", "C#1 C#2 C#3/d C#5/m", "", 2, YES),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/d C#5/m", "", 0, YES),  # its node left; its twin rests
    ("EC CLOSED", "C#1 C#2 C#3 C#4/m C#5/d C#5/m", "", 2, YES),  # too few stay in service
    ("EC CLOSED", "C#1 C#2 C#3 C#4", "+#5", 0, YES),
    ("EC CLOSED", "C#1 C#2 C#2 C#4?s C#5?s", "", 1, NO),  # two of one index are one
    ("EC CLOSED", "C#1 C#2 U#3 C#4?s C#5", "", 1, YES),
)


def test_lacking_count_and_readability_are_computed() -> None:
    """An erasure-coded container needs as many indexes as there is data. A suppressed container
    lacks nothing.
    """
    parts = [container(i, *line[:3]) for i, line in enumerate(STAYING)]
    hidden = container(len(STAYING), "R CLOSED 10", "C", suppressed=True)

    found = judge(cut(gather([*parts, hidden])).batch, Rules())

    made = missing_replicas(found.view, found.counts).tolist()
    readable = is_readable(found.view, answering(found.view)).tolist()
    assert [(*line[:3], made[i], readable[i]) for i, line in enumerate(STAYING)] == list(STAYING)
    assert (0, True) == (made[-1], readable[-1])
