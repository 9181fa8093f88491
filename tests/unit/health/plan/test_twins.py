"""Two good replicas of one index of an erasure-coded container."""

from tests.support.verification.judged import judged
from tests.support.verification.snapshots import container


def test_twins_that_stand_alone_on_their_racks_are_too_many_as_well() -> None:
    """
    Six racks for five shards: one of the two goes, though its rack then has none.
    """
    shards = "C#1=1&r1 C#1=1&r2 C#2=2&r3 C#3=3&r4 C#4=4&r5 C#5=5&r6"

    found = judged([container(1, "EC CLOSED", shards)], rack_count=6)[1]

    assert [("delete", (1,))] == [(row.action, row.indexes) for row in found.plan]
