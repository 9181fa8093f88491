"""The replication manager's report: how many containers are in which state, and which are not well.

It tells what the control plane found at its last look; `suture-verify` tells more, and of all
containers at one instant.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from scm.replication.judging.health_states import States
from scm.state.facts import ContainerState

SAMPLE_MAX: Final = 100  # containers named of each condition (Ozone's default)


@dataclass(frozen=True, slots=True)
class Verified:
    """What the last verification by Spark came to."""

    at_ms: int = 0  # 0: none yet
    decisions: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class RmReport:
    """Counts of containers, and samples of those that are not well."""

    generated_at_ms: int  # 0: the first round is not over
    states: Mapping[ContainerState, int]
    conditions: Mapping[str, tuple[int, tuple[int, ...]]]  # count, and the first ids
    verified: Verified
    recovering_count: int = 0  # shards that reconstructions are making now


def rm_report(
    counts: Mapping[ContainerState, int],
    states: States,
    round_at_ms: int,
    verified: Verified,
    recovering_count: int = 0,
) -> RmReport:
    """Return it; `counts` are of containers by state.

    Conditions are those found when each container was looked at last.
    """
    by_condition: dict[str, list[int]] = {}
    for container_id, condition in states.unwell.items():
        by_condition.setdefault(condition.name, []).append(container_id)
    return RmReport(
        round_at_ms,
        {state: counts.get(state, 0) for state in ContainerState},
        {
            condition: (len(ids), tuple(nsmallest(SAMPLE_MAX, ids)))
            for condition, ids in sorted(by_condition.items())
        },
        verified,
        recovering_count,
    )
