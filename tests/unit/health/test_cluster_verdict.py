"""The verdict of a cluster by the health states of its containers; more in
`tests/unit/scm/api/test_cluster_look.py`."""

import pytest

from health.cluster_verdict import ClusterFacts, DataVerdict, judge_cluster
from health.words import HealthState

EXPECTED = {
    "HEALTHY": (DataVerdict.WHOLE, ()),
    "UNDER_REPLICATED": (DataVerdict.DEGRADED, ("with too few replicas",)),
    "MIS_REPLICATED": (DataVerdict.DEGRADED, ("on too few racks",)),
    "OVER_REPLICATED": (DataVerdict.WHOLE, ()),
    "MISSING": (DataVerdict.DEGRADED, ("without a whole replica",)),
    "UNHEALTHY": (DataVerdict.DEGRADED, ("with damaged replicas",)),
    "EMPTY": (DataVerdict.WHOLE, ()),
    "OPEN_UNHEALTHY": (DataVerdict.UNKNOWN, ("to be closed",)),
    "QUASI_CLOSED_STUCK": (DataVerdict.DEGRADED, ("stuck in QUASI_CLOSED",)),
    "OPEN_WITHOUT_PIPELINE": (DataVerdict.UNKNOWN, ("to be closed",)),
    "UNHEALTHY_UNDER_REPLICATED": (
        DataVerdict.DEGRADED,
        ("with damaged replicas", "with too few replicas"),
    ),
    "UNHEALTHY_OVER_REPLICATED": (DataVerdict.DEGRADED, ("with damaged replicas",)),
    "MISSING_UNDER_REPLICATED": (DataVerdict.DEGRADED, ("without a whole replica",)),
    "QUASI_CLOSED_STUCK_UNDER_REPLICATED": (
        DataVerdict.DEGRADED,
        ("with too few replicas", "stuck in QUASI_CLOSED"),
    ),
    "QUASI_CLOSED_STUCK_OVER_REPLICATED": (DataVerdict.DEGRADED, ("stuck in QUASI_CLOSED",)),
    "QUASI_CLOSED_STUCK_MISSING": (
        DataVerdict.DEGRADED,
        ("without a whole replica", "stuck in QUASI_CLOSED"),
    ),
}


def test_every_health_state_has_a_verdict() -> None:
    assert list(EXPECTED) == [state.name for state in HealthState]


@pytest.mark.parametrize("name", EXPECTED)
def test_verdict_of_a_cluster_with_containers_in_one_health_state(name: str) -> None:
    facts = ClusterFacts(node_count=3, heard_count=3, closed_count=9, conditions={name: 2})

    found = judge_cluster(facts)

    verdict, words = EXPECTED[name]
    assert verdict is found.verdict
    assert len(words) == len(found.reasons)
    for word, reason in zip(words, found.reasons, strict=True):
        assert reason.text.startswith("2 ")
        assert reason.text.endswith(word)
