"""What is counted of a judged batch."""

from health.judge import judge
from health.rules import Rules
from spark_verify.report.summary import agreement
from spark_verify.tasks.tallies import Tallies
from tests.support.verification.judged import cut
from tests.support.verification.snapshots import container, gather


def test_each_container_that_is_seen_otherwise_is_named() -> None:
    """
    By what the control plane said and what the judge says. Who agrees is counted, and of whom
    nothing was said is not.
    """
    rows = gather(
        [
            container(3, "R CLOSED 10", "Cx3", health_state="HEALTHY"),
            container(4, "R CLOSED 10", "Cx2", health_state="HEALTHY"),
            container(5, "R CLOSED 10", "Cx2", health_state="HEALTHY"),
            container(6, "R CLOSED 10", "Cx2", health_state="UNDER_REPLICATED"),
            container(7, "R CLOSED 10", "Cx3", health_state="MISSING"),
            container(8, "R CLOSED 10", "Cx2"),
        ]
    )
    batch = cut(rows)
    tallies = Tallies()

    tallies.compare(judge(batch.batch, Rules()), rows.table("containers"))

    assert {
        "compared": 5,
        "differing": 3,
        "differences": [
            {"scm": "HEALTHY", "judge": "UNDER_REPLICATED", "containers": 2, "ids": [4, 5]},
            {"scm": "MISSING", "judge": "HEALTHY", "containers": 1, "ids": [7]},
        ],
    } == agreement(tallies)
