"""The headline of the status: whether the data is healthy, and what is unknown.

`suture status`, its JSON and an agent's page show the result of `headline`. The control plane's
problems and unknown facts (`health.cluster_verdict`) come first, then the reports of the datanodes.
The headline says that no damage is known only if no datanode reports a finding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from health.cluster_verdict import DataVerdict, unheard
from suture.config.quantity import format_duration
from suture.errors import size_text
from suture.wire.v1 import datanode_pb2 as pb
from suture.wire.v1 import scm_pb2

IN_SERVICE: Final = "IN_SERVICE"  # use of a volume that accepts new replicas
GONE: Final = "DECOMMISSIONED"  # a node in this state needs no replicas, and may be off

Told = tuple[pb.StatusResponse, pb.ScrubStatusResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStatus:
    """The facts from which the headline is computed.

    `oldest_at_ms` is 0 if a replica was never verified, and -1 if there are no replicas.
    `pass_ends_at_ms` is 0 if it is unknown.
    """

    asked_count: int
    silent: tuple[str, ...] = ()  # ids of datanodes that did not answer
    verdict: DataVerdict = DataVerdict.WHOLE  # verdict of the control plane
    reasons: tuple[str, ...] = ()  # why the control plane does not report the cluster as healthy
    contradictory_count: int = 0  # number of replicas, as reported by their datanodes
    failed_volume_count: int = 0
    stalled_worker_count: int = 0
    finding_count: int = 0
    data_bytes: int = 0
    in_time_bytes: int = 0
    interval_s: float = 0.0
    oldest_at_ms: int = -1
    oldest_on: str = ""
    due_bytes: int = 0
    pass_ends_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Headline:
    """The headline, and the state of the data that it reports."""

    text: str
    verdict: DataVerdict

    @property
    def is_well(self) -> bool:
        """True if the data is healthy, and nothing about it is unknown."""
        return self.verdict is DataVerdict.WHOLE


def answer_of(
    told: Sequence[Told],
    now_ms: int,
    *,
    silent: Sequence[str] = (),
    verdict: DataVerdict = DataVerdict.WHOLE,
    reasons: Sequence[str] = (),
) -> DataStatus:
    """Combine the responses of the datanodes (`told`) and the other facts into a `DataStatus`."""
    volumes = [volume for status, _ in told for volume in status.volumes if volume.data_bytes]
    oldest = min(volumes, key=lambda volume: volume.oldest_scan_at_ms, default=None)
    scans = [volume for _, scrub in told for volume in scrub.volumes if volume.state != "off"]
    has_no_end = any(volume.eta_ms < 0 for volume in scans) or not scans
    return DataStatus(
        asked_count=len(told) + len(silent),
        silent=tuple(silent),
        verdict=verdict,
        reasons=tuple(reasons),
        contradictory_count=sum(status.contradictory_count for status, _ in told),
        failed_volume_count=sum(v.failed for status, _ in told for v in status.volumes),
        stalled_worker_count=sum(w.stalled for status, _ in told for w in status.workers),
        finding_count=sum(status.finding_count for status, _ in told),
        data_bytes=sum(volume.data_bytes for volume in volumes),
        in_time_bytes=sum(volume.in_time_bytes for volume in volumes),
        interval_s=max((status.interval_ms for status, _ in told), default=0) / 1000,
        oldest_at_ms=-1 if oldest is None else oldest.oldest_scan_at_ms,
        oldest_on="" if oldest is None else oldest.path,
        due_bytes=sum(volume.due_bytes for volume in scans),
        pass_ends_at_ms=0 if has_no_end else now_ms + max(volume.eta_ms for volume in scans),
    )


def unreachable_nodes(nodes: Sequence[scm_pb2.NodeInfo], heard: Sequence[bool]) -> list[str]:
    """Return the ids of the nodes for which `heard` is False, because they did not answer.
    Decommissioned nodes are omitted."""
    return [
        node.datanode_id
        for node, was_heard in zip(nodes, heard, strict=True)
        if not was_heard and node.op_state != GONE
    ]


def volume_word(service: str, *, failed: bool, in_doubt: bool = False) -> str:
    """Return the word for the state of a volume, such as `good`, `failed` or `read-only`.

    A failure takes precedence. `service` is the service state that the datanode reports; "" if it
    reports none.
    """
    if failed or in_doubt:
        return "failed" if failed else "in doubt"
    return "good" if service in {"", IN_SERVICE} else service.lower().replace("_", "-")


def rebuild_remark(volume: pb.VolumeStatus) -> str:
    """Return the progress of the rebuild of a volume's lost index; "" if there is no rebuild."""
    count = volume.rebuild_count
    if not count:
        return ""
    done_count = count - volume.rebuild_left_count
    return f"rebuilding its lost index: {done_count:,} of {count:,} replicas loaded"


def headline(answer: DataStatus, now_ms: int) -> Headline:
    """Return the headline of the status. It reports good health if every datanode answered and
    nothing is wrong.

    Recently written data that is not verified yet is not a problem, because its scan is scheduled.
    Late scans have their own alert.
    """
    doubts = list(dict.fromkeys([*answer.reasons, *_unheard(answer), *_troubles(answer)]))
    parts = [*doubts, *_verified(answer, now_ms, has_doubts=bool(doubts))]
    return Headline("; ".join(parts), _verdict(answer))


def _verdict(answer: DataStatus) -> DataVerdict:
    """Return the state of the data according to the control plane, or a worse state if the
    datanodes report problems."""
    is_wrong = answer.finding_count or any(_troubles(answer))
    if is_wrong or answer.verdict is DataVerdict.DEGRADED:
        return DataVerdict.DEGRADED
    return DataVerdict.UNKNOWN if answer.silent or answer.reasons else answer.verdict


def _unheard(answer: DataStatus) -> Iterator[str]:
    if answer.silent:
        yield unheard(answer.silent, answer.asked_count)


def _troubles(answer: DataStatus) -> Iterator[str]:
    """Yield the problems that datanodes report, except findings about single chunks."""
    if answer.contradictory_count:
        replicas = _counted(answer.contradictory_count, "replica")
        verb = "contradicts its peers" if answer.contradictory_count == 1 else "contradict peers"
        yield f"{replicas} {verb}"
    if answer.failed_volume_count:
        yield f"{_counted(answer.failed_volume_count, 'volume')} failed"
    if answer.stalled_worker_count:
        yield f"{_counted(answer.stalled_worker_count, 'worker')} stalled"


def _verified(answer: DataStatus, now_ms: int, *, has_doubts: bool) -> Iterator[str]:
    """Yield the parts of the headline about verified data, findings and due scans, from the
    datanodes that answered."""
    where = " of the answering datanodes" if answer.silent else ""
    if answer.data_bytes:
        share = percent(answer.in_time_bytes, answer.data_bytes)
        yield f"{share} of bytes{where} verified within {format_duration(answer.interval_s)}"
        if answer.oldest_at_ms > 0:
            age_s = max(0, now_ms - answer.oldest_at_ms) / 1000
            yield f"oldest {format_duration(age_s)} on {answer.oldest_on}"
        else:
            yield f"some data on {answer.oldest_on} was never verified"
    elif len(answer.silent) < max(1, answer.asked_count):
        yield f"no closed container{where} holds data yet"
    if answer.finding_count:
        noun = "finding awaits" if answer.finding_count == 1 else "findings await"
        yield f"{answer.finding_count} {noun} repair"
    elif answer.data_bytes:
        yield "no other damage is known" if has_doubts else "no damage is known"
    if answer.data_bytes:
        yield _due(answer)


def _due(answer: DataStatus) -> str:
    if not answer.due_bytes:
        return "no scan is due"
    if answer.pass_ends_at_ms:
        ends = datetime.fromtimestamp(answer.pass_ends_at_ms / 1000, UTC)
        return f"next full pass done {ends:%A %H:%M} UTC"
    return f"{size_text(answer.due_bytes)} are due for a scan, with no estimate of the end yet"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def percent(part: int, whole: int) -> str:
    """Return `part / whole` as text in percent, rounded down, so that only a complete part is shown
    as "100 %"."""
    hundredths = part * 10_000 // whole
    return f"{hundredths // 100}.{hundredths % 100:02} %".replace("100.00 %", "100 %")
