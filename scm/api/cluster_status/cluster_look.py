"""The facts from which the verdict on the cluster's data is computed. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from health.cluster_verdict import ClusterFacts, ContainerProblems, Judgement, judge_cluster
from scm.api.cluster_status.datanode_totals import NodeTotals
from scm.api.health_totals import HealthCounts
from scm.cluster.safemode import SafeModeStatus


@dataclass(frozen=True, slots=True)
class Look:
    """Facts about the cluster and the control plane at one moment."""

    now_ms: int
    gate: SafeModeStatus
    sums: NodeTotals  # of all nodes
    counts: HealthCounts
    uncounted_count: int  # containers whose flags are outdated
    conditions: Mapping[str, int]  # containers by health state, without HEALTHY ones
    unlooked_count: int  # containers that the replication manager has yet to check
    refused: tuple[str, ...] = ()  # lines about parts of datanodes' calls that were left out


def judged(look: Look, troubles: Sequence[str] = ()) -> Judgement:
    """Return the verdict on the cluster's data.

    `troubles` are problems of the control plane's own process.
    """
    counts, sums = look.counts, look.sums
    facts = ClusterFacts(
        containers=ContainerProblems(
            lost=counts.lost,
            missing_blocks=counts.missing_blocks,
            contradict=counts.contradict,
            damaged=counts.unhealthy,
            differ=counts.differ,
            few=counts.few_replicas,
            unknown=counts.unknown,
        ),
        conditions=look.conditions,
        closed_count=counts.all - counts.open,
        stray_count=counts.stray,
        uncounted_count=look.uncounted_count,
        unlooked_count=look.unlooked_count,
        node_count=sums.node_count,
        heard_count=sums.heard_count,
        silent=sums.silent,
        unreported_count=len(sums.unreported),
        failed_volume_count=sums.failed_volume_count,
        safe_mode="" if look.gate.is_open else look.gate.reason,
        refused=look.refused,
        troubles=troubles,
    )
    return judge_cluster(facts)
