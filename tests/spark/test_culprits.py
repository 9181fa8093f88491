"""Who is to blame, from replicas to names: through the judge and the count of votes.

`make bench NAME=blame` asks the same of hundreds of clusters.
"""

from collections.abc import Callable

import pytest

from health.judge import judge
from health.rules import Rules
from spark_verify.tasks.verdict_rows import votes
from tests.support.verification import culprits
from tests.support.verification.culprits import Cluster, outcome, summed_votes
from tests.support.verification.judged import cut
from tests.support.verification.snapshots import container, gather


@pytest.mark.parametrize(
    "draw", [culprits.uneven, culprits.few, culprits.nested, culprits.outvoted]
)
def test_culprits_are_named_and_nobody_else(draw: Callable[[int], Cluster]) -> None:
    """
    None where everybody damages; one to five of any level; one inside the other; and of two
    versions that disagree not the one that is outvoted.
    """
    found = outcome(draw(2))

    assert found.guilty == found.named


def test_only_who_could_lose_was_exposed() -> None:
    """A replica does not count as exposed if it is one of two, an erasure-coded shard, silent,
    or without a known root.
    """
    batch = cut(
        gather(
            [
                container(1, "R CLOSED 10", "C=7 C=7 C=9"),
                container(2, "R CLOSED 10", "C=7 C=9"),
                container(3, "EC2-1 CLOSED 10", "C#1=1 C#2=2 C#3=3"),
                container(4, "R CLOSED 10", "C=7 C=7 C=7?d"),
                container(5, "R CLOSED 10", "C=7 C=7 C"),
                container(6, "R CLOSED 10", "C=7 C=8 C=9"),
                container(7, "R CLOSED 10", "C=7 C=7 C=7"),
            ]
        )
    )
    names = batch.batch.nodes.names

    found = summed_votes(votes(judge(batch.batch, Rules()), batch, ["1"] * len(names)))

    exposed = {row["datanode_id"]: (row["exposed"], row["lost"]) for row in found}
    assert 6 == sum(count for count, _ in exposed.values()), "three of the first and the last"
    assert 1 == sum(lost for _, lost in exposed.values())
