"""What is said of the data as a whole: "whole" only where nothing is wrong and all is known."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest

from health.cluster_verdict import DataVerdict
from scm.api.cluster_status.cluster_look import Look, judged
from scm.api.cluster_status.datanode_totals import NodeTotals
from scm.api.health_totals import HealthCounts
from scm.cluster.safemode import SafeModeStatus

COUNTS = HealthCounts(
    all=9, open=2, whole=7, faulty=0, unhealthy=0, differ=0, few_replicas=0, unknown=0, lost=0,
    contradict=0, stray=0, missing_blocks=0,
)  # fmt: skip


def sums(**facts: object) -> NodeTotals:
    """Return three nodes that were all heard, but for `facts`."""
    return NodeTotals(**({"node_count": 3, "heard_count": 3, "volume_count": 6} | facts))  # type: ignore[arg-type]


def look(**facts: object) -> Look:
    """Return a cluster where all is well, but for `facts`."""
    well: dict[str, object] = {
        "now_ms": 1_000,
        "gate": SafeModeStatus(True, "all 3 nodes that were online have reported"),
        "sums": sums(),
        "counts": COUNTS,
        "uncounted_count": 0,
        "conditions": {},
        "unlooked_count": 0,
    }
    return Look(**(well | facts))  # type: ignore[arg-type]


WRONG: Mapping[str, tuple[dict[str, object], str]] = {  # each with what must be said
    "lost": ({"counts": replace(COUNTS, lost=1)}, "1 container without a whole replica"),
    "missing": ({"conditions": {"MISSING": 2}}, "2 containers without a whole replica"),
    "missing_blocks": (
        {"counts": replace(COUNTS, missing_blocks=1)},
        "1 container without blocks that keys",
    ),
    "contradict": ({"counts": replace(COUNTS, contradict=1)}, "contradict each other"),
    "damaged": ({"counts": replace(COUNTS, unhealthy=3)}, "3 containers with damaged replicas"),
    "differ": ({"counts": replace(COUNTS, differ=1)}, "1 container whose replicas differ"),
    "few": ({"counts": replace(COUNTS, few_replicas=1)}, "1 container with too few replicas"),
    "under": ({"conditions": {"UNDER_REPLICATED": 4}}, "4 containers with too few replicas"),
    "misplaced": ({"conditions": {"MIS_REPLICATED": 2}}, "2 containers on too few racks"),
    "stuck": ({"conditions": {"QUASI_CLOSED_STUCK": 1}}, "1 container stuck in QUASI_CLOSED"),
    "volume": ({"sums": sums(failed_volume_count=1)}, "1 volume failed"),
}
UNKNOWN: Mapping[str, tuple[dict[str, object], str]] = {
    "safe mode": (
        {"gate": SafeModeStatus(False, "2 of 3 have reported")},
        "safe mode: 2 of 3 have reported",
    ),
    "nobody": ({"sums": sums(node_count=0)}, "no datanode has registered yet"),
    "silent": (
        {"sums": sums(heard_count=2, silent=["dn-1"])},
        "1 of 3 datanodes do not answer (dn-1)",
    ),
    "unreported": ({"sums": sums(unreported=["a", "b"])}, "2 datanodes have not reported all"),
    "uncounted": ({"uncounted_count": 1}, "1 container not counted yet"),
    "unlooked": ({"unlooked_count": 5}, "5 containers changed since the last check"),
    "not compared": ({"counts": replace(COUNTS, unknown=1)}, "1 container not compared yet"),
    "stray": (
        {"counts": replace(COUNTS, stray=2)},
        "datanodes have 2 containers that it does not know: its state may be an older one",
    ),
    "no pipeline": (
        {"conditions": {"OPEN_WITHOUT_PIPELINE": 1}},
        "1 open container to be closed",
    ),
    "half open": ({"conditions": {"OPEN_UNHEALTHY": 1}}, "1 open container to be closed"),
}

SAME = ({"lost", "missing"}, {"few", "under"}, {"no pipeline", "half open"})
"""Counted twice, and said once: the larger number, or both together."""


def test_healthy_cluster_is_judged_whole() -> None:
    """Only a healthy cluster gets this verdict."""
    found = judged(look())

    assert DataVerdict.WHOLE is found.verdict
    assert "All 7 closed containers are whole and equal on all replicas; 3 datanodes answer" == (
        found.text
    )
    assert () == found.reasons


@pytest.mark.parametrize("name", WRONG)
def test_whatever_is_wrong_is_said(name: str) -> None:
    """No trouble of containers or volumes leaves the data whole."""
    facts, words = WRONG[name]

    found = judged(look(**facts))

    assert DataVerdict.DEGRADED is found.verdict
    assert found.text.startswith("Degraded: ")
    assert words in found.text


@pytest.mark.parametrize("name", UNKNOWN)
def test_cluster_with_unknown_facts_is_not_judged_whole(name: str) -> None:
    """Silence, missing reports, safe mode and old counts make the verdict unknown."""
    facts, words = UNKNOWN[name]

    found = judged(look(**facts))

    assert DataVerdict.UNKNOWN is found.verdict
    assert found.text.startswith("Unknown: ")
    assert words in found.text


def test_reasons_for_a_verdict_are_all_given_and_faults_come_first() -> None:
    """This holds for every combination of two reasons."""
    for one, other in combinations({**WRONG, **UNKNOWN}, 2):
        (first, words), (second, more) = ({**WRONG, **UNKNOWN}[name] for name in (one, other))
        if first.keys() & second.keys() or {one, other} in SAME:
            continue

        found = judged(look(**first, **second))

        is_wrong = one in WRONG or other in WRONG
        assert (DataVerdict.DEGRADED if is_wrong else DataVerdict.UNKNOWN) is found.verdict
        said = [reason.text for reason in found.reasons]
        assert all(any(text in line for line in said) for text in (words, more)), (one, other)
        assert sorted(said, key=lambda line: [r.is_wrong for r in found.reasons][said.index(line)],
                      reverse=True) == said  # fmt: skip


def test_a_process_in_trouble_knows_nothing() -> None:
    """A stalled process only has old facts."""
    found = judged(look(), ["time stands still: no tick has ended lately"])

    assert DataVerdict.UNKNOWN is found.verdict
    assert "time stands still" in found.text


def test_a_surplus_or_emptied_container_is_whole() -> None:
    """Such a container endangers no data."""
    conditions = {"OVER_REPLICATED": 3, "EMPTY": 1}

    assert DataVerdict.WHOLE is judged(look(conditions=conditions)).verdict


def test_a_long_list_of_reasons_is_counted() -> None:
    """The line stays a line; the reasons stand below it."""
    counts = replace(COUNTS, lost=1, contradict=1, unhealthy=1, differ=1, few_replicas=1)

    found = judged(look(counts=counts))

    assert found.text.endswith("; and 2 more")
    assert 5 == len(found.reasons)
