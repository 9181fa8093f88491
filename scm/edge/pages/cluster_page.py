"""The cluster's page: whether the data is whole, since when, and the repairs in progress.

For a large cluster it shows the racks, and of everything else the worst entries. `?rack=` and
`?node=` show the rest (`scm.edge.pages.node_pages`).
"""

from collections.abc import Iterator, Sequence
from typing import Final

from agent.config.quantity import format_duration
from agent.errors import size_text
from agent.observe.markup import (
    Markup,
    age,
    bullets,
    document,
    element,
    joined,
    moment,
    section,
    table,
    tiles,
)
from agent.observe.status_headline import percent
from health.cluster_verdict import DataVerdict, Judgement, VerdictReason
from scm.administration.decommission import DepartureStatus
from scm.edge.health_totals import Flag
from scm.edge.overview.cluster_look import Look
from scm.edge.overview.datanode_totals import by_rack
from scm.edge.overview.page_facts import ClusterOverview, FlaggedContainers
from scm.edge.overview.progress import CompletionRate
from scm.edge.pages import node_pages
from scm.edge.pages.ranking import worst_nodes, worst_racks, worst_volumes
from scm.edge.pages.weeks import history
from scm.edge.views import ContainerView
from scm.state.facts import CommandKind
from scm.state.history.interval_samples import NEVER_VERIFIED, NOTHING_TO_VERIFY

RACKS_SHOWN_MAX: Final = 60
NODES_SHOWN_MAX: Final = 40
VOLUMES_SHOWN_MAX: Final = 25
VERIFICATIONS_SHOWN_MAX: Final = 5
REPLICAS_SHOWN_MAX: Final = 6  # of one container
KINDS: Final = {
    DataVerdict.WHOLE: "answer",
    DataVerdict.UNKNOWN: "answer doubt",
    DataVerdict.UNWELL: "answer wrong",
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
    """Return the page."""
    look, sums = survey.look, survey.look.sums
    racks = by_rack(survey.nodes)
    return document(
        "Suture: the cluster",
        element("h1", f"Cluster {survey.cluster_id}"),
        _answer(survey, judgement),
        bullets(_reason(reason) for reason in judgement.reasons),
        tiles(_facts(survey)),
        section("Being repaired", element("p", _waiting(survey)), _work_table(survey)),
        section(
            _of("Racks", RACKS_SHOWN_MAX, len(racks)),
            node_pages.rack_table(worst_racks(racks, RACKS_SHOWN_MAX), look.now_ms),
        ),
        section(
            _of("Datanodes", NODES_SHOWN_MAX, sums.node_count),
            node_pages.node_table(worst_nodes(survey.nodes, NODES_SHOWN_MAX), look.now_ms),
        ),
        section(
            _of("Volumes", VOLUMES_SHOWN_MAX, sums.volume_count),
            node_pages.volume_table(worst_volumes(survey.nodes, VOLUMES_SHOWN_MAX), look.now_ms),
        ),
        section("Containers to look at", *_containers(survey.named, look.now_ms)),
        section("Departures", *_departures(survey)),
        section("Verifications by Spark", _verifications(survey)),
        section("The weeks before", history(survey.past, look.now_ms)),
        _footer(survey),
    )


def verified_line(look: Look) -> str:
    """Return a sentence on how much data of the reporting nodes is verified."""
    sums = look.sums
    heard = " of those that were heard" if sums.silent else ""
    if sums.oldest_scan_at_ms == NOTHING_TO_VERIFY:
        return f"No closed replica{heard} holds data to verify"
    if sums.oldest_scan_at_ms == NEVER_VERIFIED:
        oldest = f"something on {sums.oldest_on} was never read again"
    else:
        oldest = f"the oldest {age(sums.oldest_scan_at_ms, look.now_ms)} ago on {sums.oldest_on}"
    if not sums.data_bytes:
        return f"Verified{heard}: {oldest}"
    share = percent(min(sums.in_time_bytes, sums.data_bytes), sums.data_bytes)
    return f"{share} of {size_text(sums.data_bytes)}{heard} verified in time; {oldest}"


def _answer(survey: ClusterOverview, judgement: Judgement) -> Markup:
    now_ms = survey.look.now_ms
    since_ms = survey.past.since_ms(judgement.verdict, now_ms)
    lasted = format_duration(max(0, now_ms - since_ms) / 1000)
    return element(
        "p",
        element("strong", judgement.text + "."),
        Markup("<br>"),
        f"Since {moment(since_ms)} ({lasted}). {verified_line(survey.look)}.",
        kind=KINDS[judgement.verdict],
    )


def _reason(reason: VerdictReason) -> Markup:
    told = joined(element("span", reason.text, kind="wrong" if reason.is_wrong else "doubt"))
    return joined(told, ": ", element("code", reason.command)) if reason.command else told


def _facts(survey: ClusterOverview) -> Iterator[tuple[str, object]]:
    sums, counts = survey.look.sums, survey.look.counts
    closed = counts.all - counts.open
    yield "closed containers whole", f"{counts.whole:,} of {closed:,}"
    yield "open containers", f"{counts.open:,}"
    yield "datanodes heard", f"{sums.heard_count:,} of {sums.expected_count:,}"
    good = sums.volume_count - sums.failed_volume_count
    yield "volumes that work", f"{good:,} of {sums.volume_count:,}"
    yield "full", node_pages.fill(sums)
    yield "free", size_text(sums.available_bytes)
    yield "verified in time", node_pages.in_time(sums)
    yield "oldest verification", node_pages.oldest(sums.oldest_scan_at_ms, survey.look.now_ms)


def _waiting(survey: ClusterOverview) -> str:
    """Return the containers that wait for copies, and how long the copies take."""
    if not survey.look.gate.is_open:
        return f"Safe mode: nothing is ordered yet. {_sentence(survey.look.gate.reason)}"
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
    ends = "how long it takes is not known yet" if left_s is None else _left(left_s)
    return (
        f"{survey.under_count:,} containers wait for a copy or a rebuild, {under_way:,} are under "
        f"way at {size_text(both.bytes_per_s())}/s: {ends}."
    )


def _left(left_s: float) -> str:
    return f"done in {format_duration(left_s)} at this rate"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _work_table(survey: ClusterOverview) -> Markup:
    columns = ("work", "#waiting or under way", "#done in 10 min", "#failed", "#rate", "#time left")
    rows = []
    for work in sorted(survey.works, key=lambda work: list(WORKS).index(work.kind)):
        rate = work.rate
        if not (work.pending_count or rate.done_count or work.kind in ALWAYS_SHOWN):
            continue
        left_s = rate.left_s(work.pending_count)
        rows.append(
            (
                WORKS[work.kind],
                f"{work.pending_count:,}",
                f"{rate.done_count:,}",
                element("span", f"{rate.failed_count:,}", kind="wrong" * bool(rate.failed_count)),
                f"{size_text(rate.bytes_per_s())}/s" if rate.moved_bytes else "-",
                "not known" if left_s is None else format_duration(left_s) if left_s else "-",
            )
        )
    return table(columns, rows)


def _containers(named: Sequence[FlaggedContainers], now_ms: int) -> Iterator[Markup]:
    columns = ("#container", "state", "replicas: state, findings, last read whole", "more")
    rows_of = [(one, [_container_row(view, now_ms) for view in one.first]) for one in named]
    if not any(one.count for one in named):
        yield element("p", "None.", kind="soft")
    for one, rows in rows_of:
        if one.count:
            shown = f", the first {len(rows)}" if len(rows) < one.count else ""
            yield element("p", f"{one.count:,} of which {TROUBLES[one.flag]}{shown}:")
            yield table(columns, rows)


def _container_row(view: ContainerView, now_ms: int) -> tuple[object, ...]:
    told = []
    for one in view.replicas[:REPLICAS_SHOWN_MAX]:
        replica = one.replica
        words = [replica.state.value]
        if replica.finding_count:
            words.append(f"{replica.finding_count} findings")
        if replica.is_contradictory:
            words.append("contradicts a peer")
        if replica.load_error:
            words.append(replica.load_error)
        words.append(node_pages.oldest(replica.data_scan_at_ms, now_ms))
        name = node_pages.node_link(replica.datanode_id)
        told.append(joined(name, " ", ", ".join(words)))
    more = len(view.replicas) - len(told)
    if more > 0:
        told.append(Markup(f"and {more} more"))
    command = element("code", f"suture explain {view.container_id}")
    return view.container_id, view.state, joined(*told, separator="<br>"), command


def _departures(survey: ClusterOverview) -> Iterator[Markup]:
    columns = ("datanode", "is", "#replicas", "#copies under way", "#containers need it", "remark")
    rows = [
        (
            node_pages.node_link(departure.node.datanode_id),
            departure.node.op_state.lower().replace("_", " "),
            f"{departure.container_count:,}",
            f"{departure.copying_count:,}",
            f"{len(departure.required):,}",
            "may be switched off" if departure.may_be_switched_off else _obstacles(departure),
        )
        for departure in survey.departures
    ]
    yield table(columns, rows, "No datanode is on its way out.")
    more = survey.departing_count - len(rows)
    if more > 0:
        yield element("p", f"and {more:,} more: ", element("code", "suture scm departures"))


def _obstacles(departure: DepartureStatus) -> str:
    words = []
    if departure.locked_count:
        words.append(f"{departure.locked_count:,} containers could not be read without it")
    if departure.unclosed_count:
        words.append(f"{departure.unclosed_count:,} are not closed yet")
    return "; ".join(words)


def _verifications(survey: ClusterOverview) -> Markup:
    rows = [
        (
            moment(one.at_ms),
            f"{age(one.at_ms, survey.look.now_ms)} ago",
            element("span", f"failed: {one.error}", kind="wrong") if one.error else "done",
            ", ".join(f"{count:,} {word}" for word, count in one.decisions) or "nothing to order",
        )
        for one in reversed(survey.past.verifications[-VERIFICATIONS_SHOWN_MAX:])
    ]
    columns = ("ended", "that is", "result", "what became of its plan")
    return table(columns, rows, "None by this control plane yet; it runs with suture-scm --verify.")


def _footer(survey: ClusterOverview) -> Markup:
    held = []
    if survey.hold_count:
        held.append(f"{survey.hold_count:,} containers or replicas are suppressed by a person. ")
    if survey.forgotten_count:
        held.append(f"{survey.forgotten_count:,} containers were given up. ")
    started = moment(survey.started_at_ms)
    return element(
        "p",
        *held,
        f"As of {moment(survey.look.now_ms)}; the control plane runs since {started}, term "
        f"{survey.term}. ",
        Markup("<a href='/metrics'>metrics</a>, <a href='/healthz'>health</a>"),
        kind="soft",
    )


def _of(title: str, shown_max: int, count: int) -> str:
    if count <= shown_max:
        return title
    return f"{title}: the {shown_max} of {count:,} that most need a look"
