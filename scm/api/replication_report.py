"""The replication manager's report: counts of containers by state, and samples of unhealthy ones.

The report shows the results of the control plane's last checks. `suture-verify` reports more facts,
for all containers at one instant.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from scm.replication.container_waits import ContainerWait
from scm.replication.health.health_states import HealthStates
from scm.state.entities import ContainerState

SAMPLE_MAX: Final = 100  # containers named per condition (Ozone's default)


@dataclass(frozen=True, slots=True)
class LastVerification:
    """The result of the last verification by Spark."""

    at_ms: int = 0  # 0 = no verification yet
    decisions: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class RmReport:
    """The replication manager's report: counts of containers, and samples of unhealthy ones."""

    generated_at_ms: int  # 0 = the first round has not ended
    states: Mapping[ContainerState, int]
    conditions: Mapping[str, tuple[int, tuple[int, ...]]]  # count, and the first container ids
    verified: LastVerification
    recovering_count: int = 0  # shards that reconstructions are writing now
    waits: tuple[ContainerWait, ...] = ()  # of the sampled containers


def rm_report(
    counts: Mapping[ContainerState, int],
    states: HealthStates,
    round_at_ms: int,
    verified: LastVerification,
    recovering_count: int = 0,
) -> RmReport:
    """Return the report. `counts` are the numbers of containers by state.

    The conditions are those of each container's last check.
    """
    by_condition: dict[str, list[int]] = {}
    for container_id, condition in states.unhealthy.items():
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
