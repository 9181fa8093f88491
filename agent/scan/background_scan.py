"""Background scan of one volume.

It scans the due replicas one after the other, the most urgent first. `scanner.schedule` makes an
agenda, which is the ordered list of the due replicas. The worker scans one of them per step. A
pause, the end of a scan window or a stop of the agent interrupts a scan. Its position is stored,
and the scan continues there later.

The agenda is renewed every AGENDA_S seconds. If no replica is due, the next agenda is made later,
so that several replicas become due in the meantime.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

import numpy as np
import structlog

from agent.scan.canary import Canary
from agent.scan.container_scan import GONE, ScanDeps, ScannedStore, scan_container
from agent.scan.throttle import ScanPace
from agent.store.direct_io import ReadBuffers
from agent.store.index.columns import ReplicaColumns
from merkle.replica import TREE_STATES, ContainerId
from scanner.finding import Verdict
from scanner.scan_rate_control import PaceLimits
from scanner.schedule import MARGIN_SHARE, Candidates, ScanCandidate, ScanHours, Schedule
from suture.errors import Code, RefusedError, UnavailableError
from suture.runtime.clock import Clock
from suture.runtime.loop import Busy, Idle, ProgressMarker, RetryAfter, Step
from suture.runtime.memory import trim_heap

AGENDA_S: Final = 30.0  # maximum age of an agenda that still has due replicas
IDLE_MAX_S: Final = 60.0  # maximum time between two steps
GATHER_MAX_S: Final = 120.0  # maximum wait for more due replicas; each agenda reads all rows
REST_MIN_S: Final = 5.0  # shortest wait before a replica whose scan could not commit is retried
NO_ROOM_REST_SHARE: Final = 0.1  # share of the interval to wait after a full disk
RESUMABLE_MIN_S: Final = 600.0
SPEED_S: Final = 10.0  # averaging window of the reported speed
PAUSE_MAX_S: Final = 7 * 86_400.0

log = structlog.get_logger()


class ScanPause:
    """Requests of an operator for the scan of one volume: a pause, or a skip of the running scan.

    Every pause has a time limit.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s = 0.0
        self._skipped: ContainerId | None = None
        self.wake: Callable[[], None] = lambda: None  # wakes the worker's loop; set by its creator

    def pause(self, duration_s: float) -> None:
        """Pause the scan for `duration_s` seconds from now.

        Raise ValueError if the duration is not above 0, or is above PAUSE_MAX_S.
        """
        if not 0 < duration_s <= PAUSE_MAX_S:
            raise ValueError(f"a pause of {duration_s:g} s: more than 0, at most {PAUSE_MAX_S:g}")
        self._until_s = self._clock.monotonic_s() + duration_s

    def resume(self) -> None:
        """End the pause."""
        self._until_s = 0.0
        self.wake()

    def skip(self, container_id: ContainerId) -> None:
        """Stop the scan of this container if it is running."""
        self._skipped = container_id

    def left_s(self) -> float:
        """Return the remaining seconds of the pause, or 0.0 if there is none."""
        return max(0.0, self._until_s - self._clock.monotonic_s())

    def stops(self, container_id: ContainerId) -> bool:
        """Return whether a pause or a skip requires the scan of this container to stop now."""
        return self._skipped == container_id or self._until_s > self._clock.monotonic_s()

    def begin(self) -> None:
        """Record that the next scan begins. An earlier skip does not apply to this scan."""
        self._skipped = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStatus:
    """Progress of the background scan of one volume.

    `state` is reading, waiting, paused, closed (outside the scan windows) or starting.
    `speed_bytes_per_s` is the measured speed of the last seconds, and `rate_bytes_per_s` the
    allowed rate. `eta_s` is the number of seconds until no replica is due, at the measured speed.
    It is -1.0 if this is unknown.
    """

    volume_id: str
    state: str
    container_id: int
    container_bytes_read: int
    container_bytes: int
    scanned_bytes: int
    speed_bytes_per_s: float
    rate_bytes_per_s: float
    needed_bytes_per_s: float
    due_count: int
    due_bytes: int
    used_bytes: int
    never_read_count: int
    oldest_read_at_ms: int
    lag_s: float
    eta_s: float
    pause_left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPolicy:
    """Schedule of the scans of a volume.

    `gap_min_s` is the minimum time in seconds between two attempts to scan one container.
    `last_copy_since_ms` returns the time since which only this datanode has a healthy replica of a
    container, or 0 if another datanode has one.
    """

    schedule: Schedule
    gap_min_s: float
    windows: ScanHours = field(default_factory=ScanHours)
    start_delay_s: float = 0.0
    last_copy_since_ms: Callable[[ContainerId], int] = lambda _: 0


@dataclass(eq=False)
class VolumeScanWorker:
    """Worker that scans the closed replicas of one volume in the order of the agenda.

    Each step scans one replica.
    """

    tools: ScanDeps[ScannedStore]
    volume_id: str
    _: KW_ONLY
    policy: RoundPolicy
    pace: ScanPace
    stop: threading.Event
    pulse: ProgressMarker
    canary: Canary | None = None

    def __post_init__(self) -> None:
        self._clock = self.tools.clock
        self._buffers = ReadBuffers()
        self._tried_at_s: dict[ContainerId, float] = {}
        self._agenda = self.policy.schedule.agenda((), 0)
        self._queue: deque[ScanCandidate] = deque()
        self._agenda_at_s = float("-inf")
        self._starts_at_s = self._clock.monotonic_s() + self.policy.start_delay_s
        self._doubt_since_ms = 0
        self._now_reading: ScanCandidate | None = None
        self._container_bytes_read = 0
        self._speed = RateMeter(self._clock)
        self._state = "starting"
        self.hold = ScanPause(self._clock)
        self.scanned_bytes = 0

    @property
    def name(self) -> str:
        """Name of the worker."""
        return f"scan-{self.volume_id}"

    def change(self, policy: RoundPolicy, limits: PaceLimits) -> None:
        """Replace the policy and the rate limits. Any thread may call this."""
        self.policy = policy
        self.pace.change(limits)
        self.hold.wake()

    def step(self) -> Step:
        """Scan the first replica of the agenda, if one is due and reading is allowed now."""
        if self.stop.is_set():
            return Idle()
        waits = self._waits()
        if waits is not None:
            state, wait_s = waits
            self._record_idle(state)
            return RetryAfter(min(wait_s, IDLE_MAX_S))
        if self.canary is not None and self.canary.is_due:
            self._state = "reading"
            self.canary.drill(self._buffers)
            return Busy()
        candidate = self._next()
        if candidate is None:
            self._record_idle("waiting")
            wait_s = max(self._agenda.wait_s, self._gather_s())
            return RetryAfter(max(REST_MIN_S, min(wait_s, self._idle_s())))
        self._state = "reading"
        self._scan(candidate)
        return Busy()

    def status(self) -> RoundStatus:
        """Return the progress for operators. Any thread may call this."""
        agenda, reading = self._agenda, self._now_reading
        waiting = tuple(self._queue)
        due_bytes = sum(candidate.used_bytes for candidate in waiting)
        if reading is not None:
            due_bytes += max(0, reading.used_bytes - self._container_bytes_read)
        speed = self._speed.bytes_per_s()
        pause_left_s = self.hold.left_s()
        eta_s = due_bytes / speed if speed else (-1.0 if due_bytes else 0.0)
        state = self._state
        if pause_left_s or state == "paused":  # a pause may have ended since the last step
            state = "paused" if pause_left_s else "waiting"
        return RoundStatus(
            volume_id=self.volume_id,
            state=state,
            container_id=reading.container_id if reading else 0,
            container_bytes_read=self._container_bytes_read if reading else 0,
            container_bytes=reading.used_bytes if reading else 0,
            scanned_bytes=self.scanned_bytes,
            speed_bytes_per_s=speed,
            rate_bytes_per_s=self.pace.bytes_per_s,
            needed_bytes_per_s=agenda.needed_bytes_per_s,
            due_count=len(waiting) + (reading is not None),
            due_bytes=due_bytes,
            used_bytes=agenda.used_bytes,
            never_read_count=agenda.never_read_count,
            oldest_read_at_ms=agenda.oldest_read_at_ms,
            lag_s=agenda.lag_s,
            eta_s=eta_s,
            pause_left_s=pause_left_s,
        )

    def rescan_all(self) -> None:
        """Schedule another scan of all replicas, because a read error makes the volume suspect.

        Only replicas that were scanned before now are scanned again. This happens at most once per
        scan interval.
        """
        interval_ms = self.policy.schedule.interval_s * 1000
        now_ms = self._clock.now_ms()
        if now_ms - self._doubt_since_ms > interval_ms:  # once per interval
            log.warning("volume_suspected", volume_id=self.volume_id)
            self._doubt_since_ms = now_ms
            self._agenda_at_s = float("-inf")

    def _record_idle(self, state: str) -> None:
        """Record the state of a worker that does not read now, and free its read buffers.

        The buffers of many volumes would need much memory.
        """
        if self._state == "reading":
            self._buffers = ReadBuffers()  # uses no memory before it is written to
        self._state = state

    def _waits(self) -> tuple[str, float] | None:
        """Return the reason why the worker may not read now, and the number of seconds to wait.

        Return None if the worker may read.
        """
        pause_left_s = self.hold.left_s()
        if pause_left_s:
            return "paused", pause_left_s
        start_left_s = self._starts_at_s - self._clock.monotonic_s()
        if start_left_s > 0:
            return "starting", start_left_s
        closed_s = self.policy.windows.opens_in_s(self._clock.now_ms())
        return ("closed", closed_s) if closed_s else None

    def _next(self) -> ScanCandidate | None:
        """Return the replica to scan now, or None if none is due.

        If the current agenda is old or finished, make a new one first.
        """
        age_s = self._clock.monotonic_s() - self._agenda_at_s
        if age_s >= (AGENDA_S if self._queue else self._gather_s()):
            self._plan()
        return self._queue.popleft() if self._queue else None

    def _plan(self) -> None:
        self._forget_old_tries()
        now_ms = self._clock.now_ms()
        self._doubt_since_ms = min(self._doubt_since_ms, now_ms)  # the clock may have been ahead
        agenda = self.policy.schedule.agenda_of(self._candidates(), now_ms)
        self._agenda = agenda
        self._agenda_at_s = self._clock.monotonic_s()
        self._queue = deque(
            item.candidate
            for item in agenda.due
            if item.candidate.container_id not in self._tried_at_s
        )
        trim_heap()
        self.pace.need(agenda.needed_bytes_per_s / max(self.policy.windows.share, 0.01))

    def _candidates(self) -> Candidates:
        columns = [replicas for _, replicas in self.tools.store.columns(self.volume_id)]
        replicas = columns[0] if columns else ReplicaColumns.none()  # the volume has failed
        closed = replicas.where(replicas.are(TREE_STATES))
        since_ms = map(self.policy.last_copy_since_ms, closed.container_ids.tolist())
        return Candidates(
            closed.container_ids,
            closed.used_bytes,
            closed.data_scan_at_ms,
            np.fromiter(since_ms, np.uint64, len(closed)),
            self._doubt_since_ms,
        )

    def _scan(self, candidate: ScanCandidate) -> None:
        container_id = candidate.container_id
        self.hold.begin()
        self._tried_at_s[container_id] = self._clock.monotonic_s()
        self._container_bytes_read = 0
        self._now_reading = candidate
        try:
            self.pace.begin(lambda: self._stops(container_id))
            report = scan_container(
                self.tools,
                container_id,
                stop=lambda: self._stops(container_id),
                progress=self._progress,
                pace=self.pace,
                pieces=self.pace,
                buffers=self._buffers,
                resumable_s=self._resumable_s(),
            )
        except RefusedError as error:
            if error.code not in GONE:  # the replica was deleted after the agenda was made
                raise
            return
        except UnavailableError as error:
            if error.code is Code.DISK_OUT_OF_SPACE:
                rest_s = NO_ROOM_REST_SHARE * self.policy.schedule.interval_s
                self._tried_at_s[container_id] = self._clock.monotonic_s() + rest_s
            raise
        finally:
            self._now_reading = None
        if not report.committed and self._waits() is not None:
            del self._tried_at_s[container_id]  # the scan continues at its cursor after the pause
        if any(finding.verdict is Verdict.UNREADABLE for finding in report.findings):
            self.rescan_all()

    def _gather_s(self) -> float:
        """Return the number of seconds to wait for more due replicas.

        This is 1/600 of the scan interval, but at most GATHER_MAX_S.
        """
        return min(GATHER_MAX_S, self.policy.schedule.interval_s / 600)

    def _idle_s(self) -> float:
        """Return the maximum number of seconds between two searches for due replicas."""
        return min(IDLE_MAX_S, self.policy.schedule.interval_s / 60)

    def _stops(self, container_id: ContainerId) -> bool:
        return (
            self.stop.is_set()
            or self.hold.stops(container_id)
            or not self.policy.windows.is_open(self._clock.now_ms())
        )

    def _resumable_s(self) -> float:
        return max(RESUMABLE_MIN_S, MARGIN_SHARE * self.policy.schedule.interval_s)

    def _forget_old_tries(self) -> None:
        oldest_s = self._clock.monotonic_s() - max(self.policy.gap_min_s, REST_MIN_S)
        self._tried_at_s = {
            container_id: tried_at_s
            for container_id, tried_at_s in self._tried_at_s.items()
            if tried_at_s > oldest_s
        }

    def _progress(self, length_bytes: int) -> None:
        self.scanned_bytes += length_bytes
        self._container_bytes_read += length_bytes
        self._speed.add(length_bytes)
        self.pulse.mark()


class RateMeter:
    """Measures a rate in bytes per second over about the last SPEED_S seconds.

    The bytes are counted separately for the two halves of this period.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._half_at_s = clock.monotonic_s()
        self._before_bytes = 0
        self._now_bytes = 0

    def add(self, length_bytes: int) -> None:
        """Add the number of bytes of a read."""
        self._start_interval()
        self._now_bytes += length_bytes

    def bytes_per_s(self) -> float:
        """Return the measured rate, or 0.0 if no bytes were read."""
        self._start_interval()
        duration_s = SPEED_S / 2 + self._clock.monotonic_s() - self._half_at_s
        return (self._before_bytes + self._now_bytes) / duration_s

    def _start_interval(self) -> None:
        age_s = self._clock.monotonic_s() - self._half_at_s
        if age_s < SPEED_S / 2:
            return
        self._before_bytes = self._now_bytes if age_s < SPEED_S else 0
        self._now_bytes = 0
        self._half_at_s += age_s - age_s % (SPEED_S / 2)
