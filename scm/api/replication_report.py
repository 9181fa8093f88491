"""The replication manager's report: counts of containers by health state, with some container ids.

The report is based on the last check of each container by the control plane. `suture-verify`
reports more facts, for all containers at the same instant.
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
    """The result of the last Spark verification."""

    at_ms: int = 0  # 0 = no verification yet
    decisions: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class RmReport:
    """The replication manager's report.

    It has the number of containers by state, and the containers that are not healthy by health
    state.
    """

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
    """Return the replication manager's report.

    `counts` are the numbers of containers by state. `states` are the health states of the
    containers at their last checks.
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
