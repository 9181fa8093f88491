"""What a replica is to its container."""

from health.judge import judge, roles
from health.rules import Rules
from health.words import ROLES
from tests.support.verification.judged import cut
from tests.support.verification.snapshots import container, gather

PARTS: tuple[tuple[str, str, list[str]], ...] = (
    ("R CLOSED 10", "C C@9 U O", ["MATCHING", "MATCHING", "UNHEALTHY", "MISMATCHED"]),
    ("R CLOSED 10", "C Q@10 Q@9 Q@11", ["MATCHING", "MISMATCHED", "STALE", "STALE"]),
    ("R QUASI_CLOSED 10", "Q@9 Q@10 C", ["MATCHING", "MATCHING", "MISMATCHED"]),
    ("R QUASI_CLOSED 10", "Q@9x3 U@10/d U@9", [*["MATCHING"] * 3, "VULNERABLE", "UNHEALTHY"]),
    ("R OPEN 10", "O Q@9", ["MATCHING", "MISMATCHED"]),
    ("R DELETING 10", "C", ["MISMATCHED"]),
)


def test_replica_gets_the_first_role_that_applies() -> None:
    """All lines are in one batch."""
    batch = cut(gather(container(i, *line[:2]) for i, line in enumerate(PARTS))).batch

    found = roles(judge(batch, Rules()))

    words: list[dict[str, str]] = [{} for _ in PARTS]
    for row, code in enumerate(found.tolist()):
        name = batch.nodes.names[batch.replicas.node[row]]
        words[int(batch.replicas.container[row])][name] = ROLES[code]
    told = [[names[name] for name in sorted(names)] for names in words]
    assert [(*line[:2], told[i]) for i, line in enumerate(PARTS)] == list(PARTS)
