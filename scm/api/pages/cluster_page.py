"""The web page of the cluster: the verdict on its data, and the repairs in progress.

For a large cluster, the page shows totals per rack, and only the worst entries of each list. The
pages `?rack=` and `?node=` show all entries of a rack or a datanode (`scm.api.pages.node_pages`).
"""

from typing import Final

from health.cluster_verdict import DataVerdict, Judgement
from scm.api.cluster_status.cluster_look import Look
from scm.api.cluster_status.datanode_totals import by_rack
from scm.api.cluster_status.page_facts import ClusterOverview
from scm.api.cluster_status.progress import CompletionRate
from scm.api.health_totals import Flag
from scm.api.pages.history_page import history
from scm.api.pages.node_pages import TEMPLATES
from scm.api.pages.ranking import worst_nodes, worst_racks, worst_volumes
from scm.state.entities import CommandKind
from scm.state.history.interval_samples import NEVER_VERIFIED, NOTHING_TO_VERIFY
from suture.config.quantity import format_duration
from suture.errors import size_text
from suture.pages.html import age, render
from suture.pages.status_headline import percent

RACKS_SHOWN_MAX: Final = 60
NODES_SHOWN_MAX: Final = 40
VOLUMES_SHOWN_MAX: Final = 25
VERIFICATIONS_SHOWN_MAX: Final = 5
REPLICAS_SHOWN_MAX: Final = 6  # of one container
KINDS: Final = {
    DataVerdict.WHOLE: "answer",
    DataVerdict.UNKNOWN: "answer doubt",
    DataVerdict.DEGRADED: "answer wrong",
}
TROUBLES: Final = {
    Flag.LOST: "no whole replica is known",
    Flag.LACKING: "no replica has all blocks that keys need",
    Flag.CONTRADICT: "replicas contradict each other",
    Flag.UNHEALTHY: "a replica is damaged",
    Flag.DIFFER: "replicas differ",
    Flag.FEW_REPLICAS: "too few replicas",
}
WORKS: Final = {
    CommandKind.REPLICATE: "copies",
    CommandKind.RECONSTRUCT: "rebuilds of shards",
    CommandKind.RECONCILE: "repairs in place (reconcile)",
    CommandKind.DELETE: "deletes of replicas",
    CommandKind.DELETE_BLOCKS: "deletes of blocks",
    CommandKind.CLOSE: "closes",
    CommandKind.SET_OPERATIONAL_STATE: "messages to datanodes",
    CommandKind.REFRESH_VOLUME_USAGE: "measurements of volumes",
    CommandKind.REREGISTER: "registrations asked for",
}
ALWAYS_SHOWN: Final = (
    CommandKind.REPLICATE,
    CommandKind.RECONSTRUCT,
    CommandKind.RECONCILE,
    CommandKind.DELETE,
)


def cluster_page(survey: ClusterOverview, judgement: Judgement) -> bytes:
    """Return the web page of the cluster as HTML."""
    now_ms, verdict = survey.look.now_ms, judgement.verdict
    racks = by_rack(survey.nodes)
    since_ms = survey.past.since_ms(verdict, now_ms)
    facts = {
        "now_ms": now_ms,
        "survey": survey,
        "judgement": judgement,
        "kind": KINDS[verdict],
        "since_ms": since_ms,
        "lasted_s": max(0, now_ms - since_ms) / 1000,
        "verified": verified_line(survey.look),
        "waiting": _waiting(survey),
        "works": [
            work
            for kind in WORKS
            for work in survey.works
            if work.kind is kind
            and (work.pending_count or work.rate.done_count or kind in ALWAYS_SHOWN)
        ],
        "titles": WORKS,
        "troubles": TROUBLES,
        "replicas_shown_max": REPLICAS_SHOWN_MAX,
        "rack_count": len(racks),
        "racks": worst_racks(racks, RACKS_SHOWN_MAX),
        "nodes": worst_nodes(survey.nodes, NODES_SHOWN_MAX),
        "volumes": worst_volumes(survey.nodes, VOLUMES_SHOWN_MAX),
        "verifications": survey.past.verifications[: -VERIFICATIONS_SHOWN_MAX - 1 : -1],
        "history": history(survey.past, now_ms),
    }
    return render(TEMPLATES, "cluster.html.j2", facts)


def verified_line(look: Look) -> str:
    """Return a sentence that states how much data of the reporting datanodes was read by scans."""
    sums = look.sums
    heard = " of the answering datanodes" if sums.silent else ""
    if sums.oldest_scan_at_ms == NOTHING_TO_VERIFY:
        return f"No closed replica{heard} holds data to verify"
    if sums.oldest_scan_at_ms == NEVER_VERIFIED:
        oldest = f"some data on {sums.oldest_on} was never verified"
    else:
        oldest = f"the oldest {age(sums.oldest_scan_at_ms, look.now_ms)} ago on {sums.oldest_on}"
    if not sums.data_bytes:
        return f"Verified{heard}: {oldest}"
    share = percent(min(sums.in_time_bytes, sums.data_bytes), sums.data_bytes)
    return f"{share} of {size_text(sums.data_bytes)}{heard} verified in time; {oldest}"


def _waiting(survey: ClusterOverview) -> str:
    """Return a sentence with the number of containers that wait for copies, and the time left."""
    if not survey.look.gate.is_open:
        reason = survey.look.gate.reason
        return f"Safe mode: nothing is ordered yet. {reason[:1].upper()}{reason[1:]}."
    adds = [
        work
        for work in survey.works
        if work.kind in {CommandKind.REPLICATE, CommandKind.RECONSTRUCT}
    ]
    under_way = sum(work.pending_count for work in adds)
    if not survey.under_count and not under_way:
        surplus = f"; {survey.over_count:,} containers have one too many" * bool(survey.over_count)
        return f"No container waits for a copy{surplus}."
    rates = [work.rate for work in adds]
    both = CompletionRate(
        sum(rate.done_count for rate in rates),
        sum(rate.failed_count for rate in rates),
        sum(rate.moved_bytes for rate in rates),
        max((rate.span_s for rate in rates), default=0.0),
    )
    left_s = both.left_s(max(survey.under_count, under_way))
    ends = (
        "how long it takes is not known yet"
        if left_s is None
        else f"done in {format_duration(left_s)} at this rate"
    )
    return (
        f"{survey.under_count:,} containers wait for a copy or a rebuild, {under_way:,} are under "
        f"way at {size_text(both.bytes_per_s())}/s: {ends}."
    )
