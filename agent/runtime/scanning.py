"""Scans as work: one container, a volume's endless round, and those that were asked for.

    begin (lease) ─ read and judge (no lease) ─ commit (lease; refused when the replica moved on)

A scan of hours does not keep anybody from writing, repairing or deleting: it only commits if the
replica is still the one that it read.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

import structlog

from agent.errors import Code, Refused, Unavailable
from agent.runtime.clock import Clock, SystemClock
from agent.runtime.lease import Leases
from agent.runtime.loop import Busy, Idle, Pulse, Step, Throttled
from agent.store.facts import ReplicaFacts, ScanBase, ScanCommit
from agent.store.reader import DiskReader, ReadBuffers
from agent.store.store import ReplicaStore
from merkle.checksum import Algorithm
from merkle.replica import TREE_STATES, ContainerId
from scanner.breaker import Breaker
from scanner.finding import Finding
from scanner.verify import CHANGED, ScanOutcome, scan_replica

SCAN_ATTEMPTS_MAX: Final = 2  # a replica that changes all the time is read again another day
LEASE_WAIT_S: Final = 30.0
REQUESTS_MAX: Final = 1_000  # on-demand scans that may wait
RETRIES_MAX: Final = 5  # of an on-demand scan whose container is busy
RETRY_S: Final = 5.0
IDLE_MAX_S: Final = 60.0  # a volume worker looks at least this often what is due
PACE_BURST_S: Final = 1.0  # budget that an idle scan may save up
GONE: Final = frozenset({Code.CONTAINER_NOT_FOUND, Code.UNCLOSED_CONTAINER_IO})

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What became of the scan of one container.

    `findings` is what this scan found, bounded as `scanner.verify` says; `finding_count` is all of
    it. When `commit.committed` is False nothing was marked, and `held_because` says why.
    """

    container_id: ContainerId
    commit: ScanCommit
    bytes_read: int
    finding_count: int
    findings: tuple[Finding, ...]
    held_because: str = ""

    @property
    def committed(self) -> bool:
        """Whether the store took the result."""
        return self.commit.committed


class MarkingGuard:
    """The mass-verdict breaker of this process, shared by all scanning threads."""

    def __init__(self, breaker: Breaker | None = None, clock: Clock | None = None) -> None:
        self._breaker = breaker or Breaker()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()

    def observe(self, volume_id: str, container_id: ContainerId, outcome: ScanOutcome) -> str:
        """Count a finished scan; return why damage must not be marked now, "" if it may."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            return self._breaker.observe(now_s, volume_id, container_id, outcome)

    def held_because(self) -> str:
        """Return why damage is not marked now; "" when it is."""
        with self._lock:
            return self._breaker.held_because(self._clock.monotonic_s())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanTools:
    """What every scan of this process uses."""

    store: ReplicaStore
    leases: Leases
    algorithm: Algorithm
    guard: MarkingGuard = field(default_factory=MarkingGuard)
    clock: Clock = field(default_factory=SystemClock)
    lease_wait_s: float = LEASE_WAIT_S


def _never() -> bool:
    return False


def _ignore(_length_bytes: int) -> None:
    pass


def scan_container(
    tools: ScanTools,
    container_id: ContainerId,
    *,
    stop: Callable[[], bool] = _never,
    progress: Callable[[int], None] = _ignore,
    pace: Callable[[int], None] = _ignore,
    buffers: ReadBuffers | None = None,
    holds_lease: bool = False,
) -> ScanReport:
    """Read one replica whole, judge it, and commit what was found.

    `holds_lease` says that the calling thread holds the container's lease already. Raise
    Refused(CONTAINER_NOT_FOUND, UNCLOSED_CONTAINER_IO), Unavailable(BUSY), VolumeFailed.
    """
    report = _scan_once(tools, container_id, stop, progress, pace, buffers, holds_lease)
    for _ in range(SCAN_ATTEMPTS_MAX - 1):
        if report.held_because == CHANGED:
            report = _scan_once(tools, container_id, stop, progress, pace, buffers, holds_lease)
    log.info(
        "replica_scanned",
        container_id=container_id,
        committed=report.committed,
        held_because=report.held_because,
        state_before=report.commit.state_before.value,
        state_after=report.commit.state_after.value,
        bytes_read=report.bytes_read,
        finding_count=report.finding_count,
    )
    return report


def _scan_once(
    tools: ScanTools,
    container_id: ContainerId,
    stop: Callable[[], bool],
    progress: Callable[[int], None],
    pace: Callable[[int], None],
    buffers: ReadBuffers | None,
    holds_lease: bool,
) -> ScanReport:
    def lease() -> AbstractContextManager[None]:
        if holds_lease:
            return nullcontext()
        return tools.leases.hold(container_id, tools.lease_wait_s, writes_chunks=False)

    with lease():
        base = tools.store.begin_scan(container_id)
    reader = DiskReader(tools.store, container_id, base, buffers=buffers)
    try:
        outcome = scan_replica(
            reader,
            algorithm=tools.algorithm,
            now_ms=tools.clock.now_ms,
            stop=stop,
            progress=progress,
            pace=pace,
        )
    finally:
        reader.close()
    held_because = _held_because(tools, base, outcome)
    if held_because:
        return _held(base.facts, outcome, held_because)
    with lease():
        commit = tools.store.commit_scan(
            container_id,
            base_generation=base.generation,
            tree=outcome.tree,
            findings=outcome.findings,
            bytes_read=outcome.bytes_read,
            complete=outcome.complete,
        )
    if not commit.committed:
        return _held(base.facts, outcome, CHANGED)
    return ScanReport(
        container_id, commit, outcome.bytes_read, outcome.finding_count, outcome.findings
    )


def _held_because(tools: ScanTools, base: ScanBase, outcome: ScanOutcome) -> str:
    """Return why nothing of this scan may be committed; "" when it may."""
    if outcome.stopped_because:
        return outcome.stopped_because
    if tools.store.generation(base.facts.container_id) != base.generation:
        return CHANGED  # and no reason for the breaker to doubt this host
    facts = base.facts
    doubt = tools.guard.observe(facts.volume_id, facts.container_id, outcome)
    if not doubt or not outcome.is_damaged:
        return ""
    log.error(
        "verdicts_held_back",
        container_id=facts.container_id,
        volume_id=facts.volume_id,
        finding_count=outcome.finding_count,
        first=outcome.findings[0].evidence,
        why=doubt,
    )
    return f"breaker: {doubt}"


def _held(facts: ReplicaFacts, outcome: ScanOutcome, why: str) -> ScanReport:
    unchanged = ScanCommit(
        committed=False, state_before=facts.state, state_after=facts.state, root_changed=False
    )
    return ScanReport(
        facts.container_id,
        unchanged,
        outcome.bytes_read,
        outcome.finding_count,
        outcome.findings,
        why,
    )


class Pace:
    """Keeps a reader at `bytes_per_s` by waiting after each read; 0 is as fast as it goes."""

    def __init__(
        self, bytes_per_s: int, wait: Callable[[float], object], clock: Clock | None = None
    ) -> None:
        """`wait(seconds)` may return early: when the process stops."""
        self._bytes_per_s = bytes_per_s
        self._wait = wait
        self._clock = clock or SystemClock()
        self._due_s = self._clock.monotonic_s()

    def __call__(self, length_bytes: int) -> None:
        """Account for a read, and wait until the next one is due."""
        if not self._bytes_per_s:
            return
        now_s = self._clock.monotonic_s()
        self._due_s = max(self._due_s, now_s - PACE_BURST_S) + length_bytes / self._bytes_per_s
        if self._due_s > now_s:
            self._wait(self._due_s - now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPolicy:
    """When a replica is due: `data_interval_s` after its last whole read, and not within
    `gap_min_s` of the last attempt."""

    data_interval_s: float
    gap_min_s: float


def next_due(
    replicas: Iterable[ReplicaFacts],
    *,
    now_ms: int,
    policy: ScanPolicy,
    is_resting: Callable[[ContainerId], bool],
) -> tuple[ReplicaFacts | None, float]:
    """Return the replica to scan now, or None and the seconds until one is due.

    Never-scanned before all, then the oldest scan, then the id. A scan time in the future is a
    clock that jumped: such a replica counts as due, or it might not be read for years.
    """
    best: tuple[int, int] | None = None
    chosen = None
    wait_s = IDLE_MAX_S
    for facts in replicas:
        if facts.state not in TREE_STATES or is_resting(facts.container_id):
            continue
        age_s = (now_ms - facts.data_scan_at_ms) / 1000
        if facts.data_scan_at_ms and 0 <= age_s < policy.data_interval_s:
            wait_s = min(wait_s, policy.data_interval_s - age_s)
            continue
        key = (facts.data_scan_at_ms, facts.container_id)
        if best is None or key < best:
            best, chosen = key, facts
    return chosen, wait_s


class VolumeScanWorker:
    """Reads one volume's closed replicas, one per step, the longest unread first."""

    def __init__(
        self,
        tools: ScanTools,
        volume_id: str,
        *,
        policy: ScanPolicy,
        bytes_per_s: int,
        stop: threading.Event,
        pulse: Pulse,
    ) -> None:
        self._tools = tools
        self._volume_id = volume_id
        self._policy = policy
        self._stop = stop
        self._pulse = pulse
        self._pace = Pace(bytes_per_s, stop.wait, tools.clock)
        self._buffers = ReadBuffers()
        self._tried_at_s: dict[ContainerId, float] = {}
        self.scanned_bytes = 0

    @property
    def name(self) -> str:
        """The worker's name."""
        return f"scan-{self._volume_id}"

    def step(self) -> Step:
        """Scan the replica that is due the longest, if one is."""
        if self._stop.is_set():
            return Idle()
        self._forget_old_tries()
        chosen, wait_s = next_due(
            self._of_this_volume(),
            now_ms=self._tools.clock.now_ms(),
            policy=self._policy,
            is_resting=self._tried_at_s.__contains__,
        )
        if chosen is None:
            return Throttled(wait_s)
        self._tried_at_s[chosen.container_id] = self._tools.clock.monotonic_s()
        try:
            scan_container(
                self._tools,
                chosen.container_id,
                stop=self._stop.is_set,
                progress=self._progress,
                pace=self._pace,
                buffers=self._buffers,
            )
        except Refused as error:
            if error.code not in GONE:  # deleted since it was listed
                raise
        return Busy()

    def _of_this_volume(self) -> Iterable[ReplicaFacts]:
        return (
            facts for facts in self._tools.store.replicas() if facts.volume_id == self._volume_id
        )

    def _forget_old_tries(self) -> None:
        oldest_s = self._tools.clock.monotonic_s() - max(self._policy.gap_min_s, RETRY_S)
        self._tried_at_s = {
            container_id: tried_at_s
            for container_id, tried_at_s in self._tried_at_s.items()
            if tried_at_s > oldest_s
        }

    def _progress(self, length_bytes: int) -> None:
        self.scanned_bytes += length_bytes
        self._pulse.beat()


@dataclass(frozen=True, slots=True)
class _Request:
    reason: str
    not_before_s: float
    retries_left: int


class OnDemandScans:
    """Scans that somebody asked for: bounded, each container waiting at most once.

    A request for a container that is being scanned waits behind that scan, because what it is
    about may lie where the scan has been already.
    """

    def __init__(
        self,
        tools: ScanTools,
        *,
        bytes_per_s: int,
        stop: threading.Event,
        pulse: Pulse,
        gap_min_s: float = 60.0,
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        """`gap_min_s`: shortest time between two scans of one container that hints ask for."""
        self._tools = tools
        self._stop = stop
        self._pulse = pulse
        self._pace = Pace(bytes_per_s, stop.wait, tools.clock)
        self._buffers = ReadBuffers()
        self._gap_min_s = gap_min_s
        self._requests_max = requests_max
        self._lock = threading.Lock()
        self._waiting: OrderedDict[ContainerId, _Request] = OrderedDict()
        self._scanned_at_s: dict[ContainerId, float] = {}
        self._wake: Callable[[], None] = lambda: None
        self.refused_count = 0
        self.scanned_count = 0

    @property
    def name(self) -> str:
        """The worker's name."""
        return "scan-on-demand"

    def attach(self, wake: Callable[[], None]) -> None:
        """Tell whom to wake when there is a request: the loop of this worker."""
        self._wake = wake

    def request(self, container_id: ContainerId, *, reason: str, is_hint: bool = False) -> bool:
        """Ask for a scan; return False when the queue is full.

        A hint (a file changed) waits until `gap_min_s` have passed since the last scan, so that
        somebody who writes all day causes a scan a minute and not a thousand.
        """
        with self._lock:
            now_s = self._tools.clock.monotonic_s()
            not_before_s = now_s
            if is_hint and container_id in self._scanned_at_s:
                not_before_s = self._scanned_at_s[container_id] + self._gap_min_s
            known = self._waiting.get(container_id)
            if known is None and len(self._waiting) >= self._requests_max:
                self.refused_count += 1
                return False
            if known is None or known.not_before_s > not_before_s:
                self._waiting[container_id] = _Request(reason, not_before_s, RETRIES_MAX)
        self._wake()
        return True

    def waiting_count(self) -> int:
        """Return how many scans wait."""
        with self._lock:
            return len(self._waiting)

    def step(self) -> Step:
        """Scan what was asked for first and may be scanned now."""
        if self._stop.is_set():
            return Idle()
        container_id, request, wait_s = self._take()
        if container_id is None or request is None:
            return Throttled(wait_s) if wait_s else Idle()
        log.info("scan_requested", container_id=container_id, reason=request.reason)
        try:
            report = scan_container(
                self._tools,
                container_id,
                stop=self._stop.is_set,
                progress=lambda _: self._pulse.beat(),
                pace=self._pace,
                buffers=self._buffers,
            )
        except Unavailable:
            self._retry(container_id, request)
            return Busy()
        except Refused as error:
            if error.code not in GONE:
                raise
            return Busy()
        self.scanned_count += 1
        if not report.committed and not self._stop.is_set():
            self._retry(container_id, request)
        return Busy()

    def _take(self) -> tuple[ContainerId | None, _Request | None, float]:
        """Return the first request that is due; else the seconds until one is, 0.0 for none."""
        with self._lock:
            now_s = self._tools.clock.monotonic_s()
            self._scanned_at_s = {
                container_id: at_s
                for container_id, at_s in self._scanned_at_s.items()
                if at_s > now_s - self._gap_min_s
            }
            for container_id, request in self._waiting.items():
                if request.not_before_s <= now_s:
                    del self._waiting[container_id]
                    self._scanned_at_s[container_id] = now_s
                    return container_id, request, 0.0
            if not self._waiting:
                return None, None, 0.0
            return None, None, min(item.not_before_s for item in self._waiting.values()) - now_s

    def _retry(self, container_id: ContainerId, request: _Request) -> None:
        """Put a scan that could not be done back, a bounded number of times."""
        if not request.retries_left:
            log.warning("scan_given_up", container_id=container_id, reason=request.reason)
            return
        again = _Request(
            request.reason,
            self._tools.clock.monotonic_s() + RETRY_S,
            request.retries_left - 1,
        )
        with self._lock:
            self._waiting.setdefault(container_id, again)
