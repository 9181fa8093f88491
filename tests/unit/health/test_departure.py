"""What holds a leaving node back, and what would be locked out with it."""

from health.departure import FREE, HELD_BY, lacking, obstacles
from health.judge import judge
from health.remaining import answering, is_readable
from health.rules import Rules
from tests.support.verification.judged import cut
from tests.support.verification.snapshots import container, gather

NO, YES = False, True
Row = tuple[int, str, bool, bool]

LEAVING: tuple[tuple[str, str, str, list[Row]], ...] = (
    # container, replicas, ops, rows: which replica, held by what, locked out, in progress
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/d", "", [(4, "too_few", NO, NO)]),  # the first row of all
    ("R CLOSED 10", "C C C", "", []),
    ("R CLOSED 10", "C C C/d", "", [(2, "too_few", NO, NO)]),
    ("R CLOSED 10", "C C C/D", "+", [(2, "too_few", NO, YES)]),
    ("R CLOSED 10", "C C C/d", "!", [(2, "too_few", NO, NO)]),  # only an add is progress
    ("R CLOSED 10", "C C C C/d", "", [(3, "", NO, NO)]),
    ("R CLOSED 10", "C C C C/d", "+", [(3, "", NO, NO)]),  # nothing is awaited
    ("R CLOSED 10", "C C C/m", "", [(2, "", NO, NO)]),
    ("R CLOSED 10", "C C/e C/m", "", [(1, "too_few", NO, NO), (2, "too_few", NO, NO)]),
    ("R CLOSED 10", "C/d", "", [(0, "no_good_replica", YES, NO)]),
    ("R CLOSED 10", "C/d C/d", "", [(i, "no_good_replica", NO, NO) for i in (0, 1)]),
    ("R CLOSED 10", "C/d C?s", "", [(0, "too_few", YES, NO)]),  # a stale node serves nobody now
    ("R CLOSED 10", "C/d C?r", "", [(0, "too_few", NO, NO)]),
    ("R CLOSED 10", "C/d U", "", [(0, "no_good_replica", YES, NO)]),
    ("R CLOSED 10", "C U/d", "", [(1, "too_few", NO, NO)]),
    ("R CLOSED 10", "C C C U/d", "", [(3, "", NO, NO)]),
    ("R CLOSED 10", "U U U/d", "", [(2, "no_good_replica", YES, NO)]),
    ("R CLOSED 10", "U U U U/d", "", [(3, "", YES, NO)]),  # as many as wanted, and none is whole
    ("R CLOSED 10", "C C O C/d", "", [(3, "unclosed", NO, NO)]),
    ("R CLOSED 10", "C C G C/d", "", [(3, "unclosed", NO, NO)]),
    ("R CLOSED 10", "C C C U O/d", "", [(4, "", NO, NO)]),  # it is not the node itself that counts
    ("R CLOSED 10", "C C C C?d/d", "", []),  # gone: nothing is left to wait for
    ("R CLOSED 10", "C C C?d/m", "", [(2, "", NO, NO)]),  # dead, but it will be back
    ("R OPEN 10", "O O O/d", "", [(2, "unclosed", NO, NO)]),
    ("R OPEN 10", "O/d", "", [(0, "unclosed", NO, NO)]),
    ("R CLOSING 10", "G G G/d", "", [(2, "unclosed", NO, NO)]),
    ("R QUASI_CLOSED 10", "Qx3 Q/d", "", [(3, "", NO, NO)]),
    ("R QUASI_CLOSED 10", "Q/d", "", [(0, "no_good_replica", YES, NO)]),
    ("R QUASI_CLOSED 10", "Qx2 C Q/d", "", [(3, "", NO, NO)]),  # it is about to follow
    ("R QUASI_CLOSED 10", "Q@9x3 U@10/d", "", [(3, "no_good_replica", NO, NO)]),  # vulnerable
    ("R DELETING 10", "C C C/d", "", [(2, "", NO, NO)]),
    ("R DELETED 10", "C/d", "", [(0, "", NO, NO)]),
    ("R CLOSED 10", "C!/d", "", [(0, "", NO, NO)]),  # empty: there is nothing to lose
    ("R CLOSED 10", "C! C/d", "", [(1, "too_few", NO, NO)]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/d", "", [(4, "too_few", NO, NO)]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/d C#5", "", [(4, "", NO, NO)]),
    ("EC CLOSED", "C#1 C#2 C#3/d", "", [(2, "too_few", YES, NO)]),
    ("EC CLOSED", "C#1 C#1/d C#2 C#3/d", "", [(1, "", NO, NO), (3, "too_few", YES, NO)]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 U#5 C#5/d", "", [(5, "too_few", NO, NO)]),  # a bad twin is none
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/m", "", [(4, "", NO, NO)]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4/m C#5/m", "", [(i, "too_few", NO, NO) for i in (3, 4)]),
    ("EC CLOSED", "C#1 C#2 C#3/m", "+#4", [(2, "too_few", YES, YES)]),
    ("EC CLOSED", "C#1/d C#2", "", [(0, "no_good_replica", YES, NO)]),
    ("EC CLOSED", "C#1 C#1/d C#2", "", [(1, "no_good_replica", YES, NO)]),
    ("EC CLOSED", "C#1 C#2 C#3?s C#4/d", "", [(3, "too_few", YES, NO)]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4?s/d", "", [(3, "too_few", NO, NO)]),
    ("EC CLOSED", "C#1/d C#2/d C#3/d C#4/d", "", [(i, "too_few", NO, NO) for i in range(4)]),
    ("EC6-3 CLOSED", "C#1 C#2 C#3 C#4 C#5 C#6/d", "", [(5, "too_few", YES, NO)]),
)


def test_replica_on_a_leaving_node_has_its_stop_condition() -> None:
    """All lines are in one batch, so that no container affects its neighbour."""
    parts = [container(i, *line[:3]) for i, line in enumerate(LEAVING)]
    unknown = container(len(LEAVING), "R CLOSED 10", "C/d")
    unknown.containers.clear()
    batch = cut(gather([*parts, unknown])).batch

    found = judge(batch, Rules()).departures

    rows: dict[int, list[Row]] = {i: [] for i in range(len(LEAVING) + 1)}
    for place, row in enumerate(found.row.tolist()):
        name = batch.nodes.names[batch.replicas.node[row]]
        number = int(name.rsplit("-", 1)[1])
        held = int(found.held[place])
        rows[int(batch.replicas.container[row])].append(
            (
                number,
                "" if held == FREE else HELD_BY[held],
                bool(found.is_locked_out[place]),
                bool(found.is_in_progress[place]),
            )
        )
    assert [(*line[:3], sorted(rows[i])) for i, line in enumerate(LEAVING)] == list(LEAVING)
    assert rows[len(LEAVING)] == [], "nobody says how many replicas it should have"


def test_a_container_that_the_control_plane_does_not_know_holds_nobody_back() -> None:
    """
    The control plane asks by container and Spark by replica: the two must not disagree.
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

    made = lacking(found.view, found.counts).tolist()
    readable = is_readable(found.view, answering(found.view)).tolist()
    assert [(*line[:3], made[i], readable[i]) for i, line in enumerate(STAYING)] == list(STAYING)
    assert (0, True) == (made[-1], readable[-1])
