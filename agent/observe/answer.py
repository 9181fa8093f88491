"""The one line that a person asks for: how much was verified in time, what is old, what waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from agent.errors import size_text
from agent.quantity import spoken_duration
from agent.rpc.v1 import datanode_pb2 as pb

Told = tuple[pb.StatusResponse, pb.ScrubStatusResponse]


@dataclass(frozen=True, slots=True)
class Answer:
    """What datanodes say of their data, together. `oldest_at_ms` is 0 when something was never
    verified, -1 when there is nothing; `pass_ends_at_ms` is 0 when it cannot be said."""

    data_bytes: int
    in_time_bytes: int
    interval_s: float
    oldest_at_ms: int
    oldest_on: str
    never_read_count: int
    finding_count: int
    damaged_count: int
    due_bytes: int
    pass_ends_at_ms: int

    @property
    def is_whole(self) -> bool:
        """Whether everything was verified in time and nothing was found."""
        return self.in_time_bytes == self.data_bytes and not self.finding_count


def answer_of(told: Sequence[Told], now_ms: int) -> Answer:
    """Return what the datanodes say, together."""
    volumes = [volume for status, _ in told for volume in status.volumes if volume.data_bytes]
    oldest = min(volumes, key=lambda volume: volume.oldest_scan_at_ms, default=None)
    scans = [volume for _, scrub in told for volume in scrub.volumes if volume.state != "off"]
    unknown = any(volume.eta_ms < 0 for volume in scans) or not scans
    return Answer(
        data_bytes=sum(volume.data_bytes for volume in volumes),
        in_time_bytes=sum(volume.in_time_bytes for volume in volumes),
        interval_s=max((status.interval_ms for status, _ in told), default=0) / 1000,
        oldest_at_ms=-1 if oldest is None else oldest.oldest_scan_at_ms,
        oldest_on="" if oldest is None else oldest.path,
        never_read_count=sum(volume.never_read_count for volume in scans),
        finding_count=sum(status.finding_count for status, _ in told),
        damaged_count=sum(status.damaged_count for status, _ in told),
        due_bytes=sum(volume.due_bytes for volume in scans),
        pass_ends_at_ms=0 if unknown else now_ms + max(volume.eta_ms for volume in scans),
    )


def sentence(answer: Answer, now_ms: int) -> str:
    """Return the answer in one line."""
    if not answer.data_bytes:
        return "no closed container holds data yet"
    parts = [f"{percent(answer.in_time_bytes, answer.data_bytes)} of bytes verified within "]
    parts[0] += spoken_duration(answer.interval_s)
    if answer.oldest_at_ms > 0:
        age_s = max(0, now_ms - answer.oldest_at_ms) / 1000
        parts.append(f"oldest {spoken_duration(age_s)} on {answer.oldest_on}")
    else:
        parts.append(f"something on {answer.oldest_on} was never read again")
    if answer.finding_count:
        noun = "finding awaits" if answer.finding_count == 1 else "findings await"
        parts.append(f"{answer.finding_count} {noun} repair")
    else:
        parts.append("nothing is damaged")
    if not answer.due_bytes:
        parts.append("nothing is due")
    elif answer.pass_ends_at_ms:
        ends = datetime.fromtimestamp(answer.pass_ends_at_ms / 1000, UTC)
        parts.append(f"next full pass done {ends:%A %H:%M} UTC")
    else:
        parts.append(f"{size_text(answer.due_bytes)} are due, the end is not known yet")
    return "; ".join(parts)


def percent(part: int, whole: int) -> str:
    """Return the share, rounded down: what is not all is never called 100 %."""
    hundredths = part * 10_000 // whole
    return f"{hundredths // 100}.{hundredths % 100:02} %".replace("100.00 %", "100 %")
