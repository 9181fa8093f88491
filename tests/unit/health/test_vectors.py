"""The health chain: every published vector, all judged in one batch."""

from health.rules import Rules
from health.words import Health, states_counted
from tests.support.judged import Judged, judged
from tests.support.snapshots import container

Vector = tuple[str, str, str, str, str, str, dict[str, int]]

VECTORS: tuple[Vector, ...] = (
    ("V1", "R CLOSED 10", "Cx3", "", "HEALTHY", "-", {}),
    ("V2", "R CLOSED 10", "Cx2", "", "UNDER_REPLICATED", "U", {}),
    ("V4", "R CLOSED 10", "Cx3", "-", "UNDER_REPLICATED", "U", {}),
    ("V5", "R CLOSED 10", "C C/d C/D", "", "UNDER_REPLICATED", "U", {}),
    ("V7", "R CLOSED 10", "C C/D", "+", "UNDER_REPLICATED", "U", {}),
    ("V8", "R CLOSED 10", "C/mx3", "", "UNDER_REPLICATED", "U", {}),
    ("V10", "R CLOSED 10", "", "", "MISSING", "-", {}),
    ("V11", "R CLOSED 10", "Cx2 Ux2", "", "UNDER_REPLICATED", "U", {}),
    ("V13", "R CLOSED 10", "Cx3 Ux3", "", "OVER_REPLICATED", "O", {}),
    ("V14", "R CLOSED 10", "Cx2 G Ux3", "", "OVER_REPLICATED", "-", {}),
    ("V16", "R CLOSED 10", "Gx3 C", "", "OVER_REPLICATED", "-", {}),
    ("V17", "R CLOSED 10", "O@10 O@10 C", "", "HEALTHY", "-", {}),
    ("V19", "R CLOSED 20", "C@20x2 Q@19", "", "UNDER_REPLICATED", "U", {}),
    ("V20", "R CLOSED 20", "C@20x3 Q@19", "", "OVER_REPLICATED", "O", {}),
    ("V22", "R CLOSED 20", "Q@19x4", "", "UNHEALTHY_OVER_REPLICATED", "O", {}),
    ("V23", "R CLOSED 10", "Cx7", "-x2", "OVER_REPLICATED", "O", {}),
    ("V25", "R CLOSED 10", "Cx4 C/m C/D", "", "OVER_REPLICATED", "O", {}),
    ("V26", "R CLOSED 10", "Cx3 C/mx2", "", "HEALTHY", "-", {}),
    ("V28", "R CLOSED 10", "U", "+", "UNHEALTHY_UNDER_REPLICATED", "U", {}),
    ("V29", "R CLOSED 10", "Ux2", "+", "UNHEALTHY_UNDER_REPLICATED", "-", {}),
    ("V31", "R CLOSED 10", "Ux2 U/d", "", "UNHEALTHY_UNDER_REPLICATED", "U", {}),
    ("V32", "R CLOSED 10", "Ux4", "", "UNHEALTHY_OVER_REPLICATED", "O", {}),
    ("V34", "R CLOSED 10", "C/ex2 C", "", "HEALTHY", "-", {"maintenance_min": 1}),
    ("V35", "R CLOSED 10", "C/ex2 C", "", "UNDER_REPLICATED", "U", {"maintenance_min": 2}),
    ("V37", "R QUASI_CLOSED 12", "Q@12x3", "", "HEALTHY", "-", {}),
    ("V38", "R QUASI_CLOSED 12", "Q@12x2 Q@11", "", "HEALTHY", "-", {}),
    ("V40", "R QUASI_CLOSED 10", "Q@10 U@10x2", "", "UNDER_REPLICATED", "U", {}),
    ("V41", "R QUASI_CLOSED 12", "Q@12x2 O@12", "", "QUASI_CLOSED_STUCK", "-", {}),
    (
        "V43",
        "R QUASI_CLOSED 12",
        "Q@12^a Q@10^bx2",
        "",
        "QUASI_CLOSED_STUCK + QUASI_CLOSED_STUCK_UNDER_REPLICATED",
        "U",
        {},
    ),
    (
        "V44",
        "R QUASI_CLOSED 11",
        "Q@10 Q@8 U@11",
        "",
        "QUASI_CLOSED_STUCK + QUASI_CLOSED_STUCK_UNDER_REPLICATED",
        "U",
        {},
    ),
    ("V46", "R QUASI_CLOSED 11", "Q@10^ax3 Q@8^bx2", "", "QUASI_CLOSED_STUCK", "-", {}),
    ("V47", "R QUASI_CLOSED 11", "Q@10^ax3 Q@8^bx2 U@11^cx2", "", "QUASI_CLOSED_STUCK", "-", {}),
    (
        "V49",
        "R QUASI_CLOSED 11",
        "Q@10^ax3 U@11^c/d U@11^c",
        "",
        "QUASI_CLOSED_STUCK + QUASI_CLOSED_STUCK_UNDER_REPLICATED",
        "U",
        {},
    ),
    ("V50", "R QUASI_CLOSED 10", "Q@10^ax4", "", "QUASI_CLOSED_STUCK + OVER_REPLICATED", "O", {}),
    (
        "V52",
        "R QUASI_CLOSED 10",
        "Q@10^ax3 Q@8^bx3",
        "-",
        "QUASI_CLOSED_STUCK + QUASI_CLOSED_STUCK_OVER_REPLICATED",
        "-",
        {},
    ),
    (
        "V53",
        "R QUASI_CLOSED 10",
        "Q@10^ax2 Q@10^a/m Q@10^bx2 Q@10^b/m",
        "",
        "QUASI_CLOSED_STUCK",
        "-",
        {},
    ),
    (
        "V55",
        "R QUASI_CLOSED 10",
        "Q@10^ax4 Q@10^a/m Q@8^bx2 Q@8^b/m",
        "",
        "QUASI_CLOSED_STUCK + QUASI_CLOSED_STUCK_OVER_REPLICATED",
        "O",
        {},
    ),
    (
        "V56",
        "R QUASI_CLOSED 10",
        "",
        "",
        "QUASI_CLOSED_STUCK + QUASI_CLOSED_STUCK_MISSING",
        "-",
        {},
    ),
    ("V58", "EC CLOSED", "C#1 C#2 C#3 C#4 C#5", "", "HEALTHY", "-", {}),
    ("V59", "EC CLOSED", "C#1 C#2 C#4 C#5", "", "UNDER_REPLICATED", "U", {}),
    ("V61", "EC CLOSED", "C#1 C#2 C#3 C#4/d C#5/D", "", "UNDER_REPLICATED", "U", {}),
    ("V62", "EC CLOSED", "C#1 C#2 C#3 C#4/d C#4 C#5/D", "+#5", "UNDER_REPLICATED", "-", {}),
    ("V64", "EC CLOSED", "C#1 C#2", "", "MISSING", "-", {}),
    ("V65", "EC CLOSED", "C#1 C#2 U#3 U#4", "", "UNHEALTHY", "-", {}),
    ("V67", "EC CLOSED", "C#1 C#2/e", "", "MISSING_UNDER_REPLICATED", "U", {}),
    ("V68", "EC CLOSED", "C#1 C#2/d", "+#2", "MISSING_UNDER_REPLICATED", "-", {}),
    ("V70", "EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5", "", "UNHEALTHY_OVER_REPLICATED", "-", {}),
    ("V71", "EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#1", "-#1n5", "UNHEALTHY_OVER_REPLICATED", "-", {}),
    ("V73", "EC CLOSED", "C#1x2 C#2x2 C#3 C#4 C#5", "-#1 -#2", "OVER_REPLICATED", "-", {}),
    ("V74", "EC CLOSED", "C#1 C#1/m C#2 C#2/m C#3 C#4 C#5", "", "HEALTHY", "-", {}),
    ("V76", "EC CLOSED", "C#1/e C#2/e C#3 C#4 C#5", "", "HEALTHY", "-", {"ec_redundancy": 0}),
    (
        "V77",
        "EC CLOSED",
        "C#1/e C#2/e C#3 C#4 C#5",
        "",
        "UNDER_REPLICATED",
        "U",
        {"ec_redundancy": 2},
    ),
    (
        "W65",  # more redundancy than there is parity is as much as there is
        "EC CLOSED",
        "C#1/e C#2/e C#3 C#4 C#5",
        "",
        "UNDER_REPLICATED",
        "U",
        {"ec_redundancy": 5},
    ),
    ("W65", "EC CLOSED", "C#1 C#2 C#3 C#4 C#5", "", "HEALTHY", "-", {"ec_redundancy": 5}),
    (
        "W67",
        "R QUASI_CLOSED 20",
        "Q@10^ax3 Q@20^c",
        "",
        "QUASI_CLOSED_STUCK + QUASI_CLOSED_STUCK_UNDER_REPLICATED",
        "U",
        {},
    ),
    (
        "V79",
        "EC CLOSED",
        "C#1/m C#2/e C#3/m C#4/m C#5/m",
        "+#1 +#2 +#3 +#4",
        "UNDER_REPLICATED",
        "-",
        {},
    ),
    ("V80", "EC CLOSED", "C#1 C#2 C#3 U#4 G#5", "", "UNDER_REPLICATED", "U", {}),
    ("V82", "EC OPEN", "C#1 C#2 C#3 C#4", "", "OPEN_UNHEALTHY", "-", {}),
    ("V83", "EC CLOSED", "C#1!", "", "EMPTY", "-", {}),
)
"""Name, container, replicas, ops, states counted, queue, rules: health rules, section 6."""


def counted(found: Judged) -> str:
    """Return the states counted for a container as the tables write them."""
    opinion = found.opinion
    numbers = states_counted(Health[opinion.state], is_stuck=opinion.stuck)
    return " + ".join(Health(number).name for number in numbers) or "HEALTHY"


class TestVectorsV:
    """Table V of the health rules."""

    def test_every_vector_counts_the_states_and_queues_as_published(self) -> None:
        """
        Replicas, pending ops and rules in; states and queue out.
        """
        own_rules = [v for v in VECTORS if v[6]]
        plain = [v for v in VECTORS if not v[6]]

        rows = judged(container(i, v[1], v[2], v[3]) for i, v in enumerate(plain))
        found = [(v[0], counted(rows[i]), rows[i].opinion.queue) for i, v in enumerate(plain)]
        for v in own_rules:
            one = judged([container(1, v[1], v[2], v[3])], rules=Rules(**v[6]))[1]
            found.append((v[0], counted(one), one.opinion.queue))

        assert found == [(v[0], v[4], v[5]) for v in (*plain, *own_rules)]

    def test_one_origin_may_lack_while_another_has_too_many(self) -> None:
        """
        A new best origin appears: two replicas of it lack, which comes before the one too many.
        """
        rows = judged([container(1, "R QUASI_CLOSED 20", "Q@10^ax3 Q@20^c")])

        assert [(row.action, row.sources, row.copies) for row in rows[1].plan] == [
            ("replicate", ("dn-1-3",), 2)
        ]
        assert {"UNDER_REPLICATED", "OVER_REPLICATED"} <= rows[1].opinion.flags


DECOMMISSION: tuple[tuple[str, str, str, int, int], ...] = (
    # which, replicas, ops, replicas needed, needed after pending ops
    ("S2.42", "Cx3", "", 0, 0),
    ("S2.43", "C C C?d", "", 1, 1),
    ("S2.44", "C C C/D", "", 1, 1),
    ("S2.45", "C C?d C/D", "", 2, 2),
    ("S2.46", "C?d C/D C/D", "", 3, 3),
    ("S2.47", "C C C/m", "", 0, 0),
    ("S2.48", "C C/D C/m", "", 1, 1),
    ("S2.49", "C/Dx3", "", 3, 3),
    ("S2.50", "C?d C?d C/D", "", 3, 3),
    ("S2.51", "C?dx3", "", 3, 3),
    ("S2.52", "C?d C/m C?d", "", 2, 2),
    ("S2.53", "C/mx3", "", 2, 2),
    ("S2.54", "Cx4", "", -1, -1),
    ("S2.55", "Cx3 C/m", "", 0, 0),
    ("S2.56", "C C C/m C/m", "", 0, 0),
    ("S2.57", "C C", "+", 1, 0),
    ("S2.57b", "C C/m", "+", 1, 0),
    ("S2.58", "C/D", "+ +", 3, 1),
    ("all resting", "C/mx4", "", 2, 2),  # the published function says 0 here: nobody online
)
"""The worked examples of the decommission design, in our reading (health rules, section 8)."""

BAD = "UNHEALTHY_REPLICA"
FLAGGED: tuple[tuple[str, str, str, set[str], str], ...] = (
    ("S1.29", "R CLOSED", "C C U", {"UNDER_REPLICATED", BAD}, "UNDER_REPLICATED"),
    ("S1.30", "R CLOSED", "Ux3", {"UNHEALTHY", "DATA_AT_RISK", BAD}, "UNHEALTHY"),
    (
        "S1.31",
        "R CLOSED",
        "Ux2",
        {"UNHEALTHY", "UNDER_REPLICATED", "DATA_AT_RISK", BAD},
        "UNHEALTHY_UNDER_REPLICATED",
    ),
    ("S1.33", "EC CLOSED", "C#1 C#2 C#3 U#4 U#5", {"UNDER_REPLICATED", BAD}, "UNDER_REPLICATED"),
    ("S1.34", "EC CLOSED", "C#1 C#2 C#3", {"UNDER_REPLICATED"}, "UNDER_REPLICATED"),
    ("S1.35", "EC CLOSED", "C#1 C#2 U#3", {"UNHEALTHY", "DATA_AT_RISK", BAD}, "UNHEALTHY"),
    ("S1.36", "EC CLOSED", "C#1 C#2", {"MISSING", "DATA_AT_RISK"}, "MISSING"),
    (
        "S1.37",
        "EC CLOSED",
        "C#1 C#2 U#2",
        {"MISSING", "DATA_AT_RISK", BAD, "UNHEALTHY_EXCESS"},
        "MISSING",
    ),
    (
        "S1.38",
        "EC CLOSED",
        "C#1 C#2 U#2 C#3",
        {"UNDER_REPLICATED", BAD, "UNHEALTHY_EXCESS"},
        "UNDER_REPLICATED",
    ),
    (
        "W17",
        "R QUASI_CLOSED 10",
        "Q@9x3 U@10/d",
        {"VULNERABLE", "QUASI_CLOSED_STUCK", BAD},
        "QUASI_CLOSED_STUCK + UNHEALTHY_UNDER_REPLICATED",
    ),
    (
        "W19",
        "R QUASI_CLOSED 10",
        "Q@9x3 U@10^z/d U@10^z",
        {"QUASI_CLOSED_STUCK", BAD},
        "QUASI_CLOSED_STUCK",
    ),
)
"""Where one state hides what the flags show."""


def test_leaving_nodes_and_hidden_states_read_as_in_the_tables() -> None:
    """
    The decommission table gives the replicas needed; flags tell what one state cannot.
    """
    parts = [container(i, "R CLOSED 10", line[1], line[2]) for i, line in enumerate(DECOMMISSION)]
    parts += [container(100 + i, line[1], line[2]) for i, line in enumerate(FLAGGED)]

    rows = judged(parts)

    assert [(line[0], rows[i].need, rows[i].need_after) for i, line in enumerate(DECOMMISSION)] == [
        (line[0], line[3], line[4]) for line in DECOMMISSION
    ]
    found = [
        (line[0], set(rows[100 + i].opinion.flags), counted(rows[100 + i]))
        for i, line in enumerate(FLAGGED)
    ]
    assert found == [(line[0], line[3], line[4]) for line in FLAGGED]
