"""The replication manager's report: how many containers are in which state, and which are not well.

It tells what the control plane's own rules see; `suture-verify` tells more, and of all at one
instant.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from scm.facts import Container, ContainerState
from scm.replication import Condition
from scm.upkeep import Upkeep

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
    conditions: Mapping[Condition, tuple[int, tuple[int, ...]]]  # count, and the first ids
    verified: Verified


def rm_report(containers: Iterable[Container], upkeep: Upkeep, verified: Verified) -> RmReport:
    """Count. Conditions are those found when each container was looked at last."""
    states = Counter(container.state for container in containers)
    by_condition: dict[Condition, list[int]] = {}
    for container_id, condition in upkeep.conditions.items():
        by_condition.setdefault(condition, []).append(container_id)
    return RmReport(
        upkeep.round_at_ms,
        {state: states[state] for state in ContainerState},
        {
            condition: (len(ids), tuple(nsmallest(SAMPLE_MAX, ids)))
            for condition, ids in sorted(by_condition.items())
        },
        verified,
    )
