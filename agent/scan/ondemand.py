"""On-demand scans of single replicas.

An operator requests them, or an event: a changed file, a failed read, or damage nearby on the disk.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from enum import IntEnum
from typing import Final

import structlog

from agent.scan.container_scan import BREAKER, GONE, SHADOW, StoreScanDeps, scan_container
from agent.store.direct_io import ReadBuffers
from merkle.replica import ContainerId
from scanner.ports import ReadSplitting
from suture.errors import Code, RefusedError, UnavailableError
from suture.runtime.loop import Busy, Idle, ProgressMarker, RetryAfter, Step

REQUESTS_MAX: Final = 1_000  # requests that may wait
RETRIES_MAX: Final = 5  # retries of a request whose scan could not commit
RETRY_S: Final = 5.0

log = structlog.get_logger()


class ScanPriority(IntEnum):
    """Priority of a request in the queue. Lower values are scanned first.

    ASKED is a request of an operator, FAILURE a failed read, NEIGHBOUR damage nearby on the disk,
    and HINT a changed file.
    """

    ASKED = 0
    FAILURE = 1
    NEIGHBOUR = 2
    HINT = 3


@dataclass(frozen=True, slots=True)
class _Request:
    reason: str
    priority: ScanPriority
    not_before_s: float
    retries_left: int
    was_held: bool = False  # an earlier result was not committed, because of the breaker


@dataclass(eq=False)
class OnDemandScans:
    """Queue of on-demand scans. It is bounded, and has at most one request per container.

    A request for a container that is being scanned waits until that scan ends, because the fault
    may be in a part that the scan has already read.

    `gap_min_s` and `failure_gap_s` are the minimum seconds between two scans of one container. The
    first is for changed files, the second for failed reads and damage nearby.
    """

    tools: StoreScanDeps
    _: KW_ONLY
    pace: Callable[[int], None]
    pieces: ReadSplitting | None = None
    stop: threading.Event
    pulse: ProgressMarker
    gap_min_s: float = 60.0
    failure_gap_s: float = 900.0
    requests_max: int = REQUESTS_MAX

    def __post_init__(self) -> None:
        self._buffers = ReadBuffers()
        self._gaps_s = {
            ScanPriority.HINT: self.gap_min_s,
            ScanPriority.FAILURE: self.failure_gap_s,
            ScanPriority.NEIGHBOUR: self.failure_gap_s,
        }
        self._lock = threading.Lock()
        self._waiting: OrderedDict[ContainerId, _Request] = OrderedDict()
        self._scanned_at_s: dict[ContainerId, float] = {}
        self._wake: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """Name of the worker."""
        return "scan-on-demand"

    def attach(self, wake: Callable[[], None]) -> None:
        """Set the function that wakes the loop of this worker after a request."""
        self._wake = wake

    def request(
        self,
        container_id: ContainerId,
        *,
        reason: str,
        is_hint: bool = False,
        is_failure: bool = False,
        is_neighbour: bool = False,
    ) -> bool:
        """Request a scan. Return False if the queue is full.

        After a scan of the container, a request for a changed file (`is_hint`) waits for
        `gap_min_s` seconds, so that a process that writes all day causes at most one scan a minute.
        A request for a failed read or for damage nearby waits for `failure_gap_s` seconds, because
        a bad sector remains bad. `ScanPriority` defines the order of the requests.
        """
        with self._lock:
            now_s = self.tools.clock.monotonic_s()
            priority = _priority(is_failure=is_failure, is_neighbour=is_neighbour, is_hint=is_hint)
            not_before_s = now_s
            if priority is not ScanPriority.ASKED and container_id in self._scanned_at_s:
                not_before_s = self._scanned_at_s[container_id] + self._gaps_s[priority]
            known = self._waiting.get(container_id)
            if known is None and len(self._waiting) >= self.requests_max:
                return False
            if known is None or (known.priority, known.not_before_s) > (priority, not_before_s):
                request = _Request(reason, priority, not_before_s, RETRIES_MAX)
                self._waiting[container_id] = request
        self._wake()
        return True

    def waiting_count(self) -> int:
        """Return the number of requests in the queue."""
        with self._lock:
            return len(self._waiting)

    def step(self) -> Step:
        """Scan the container of the first request that is due."""
        if self.stop.is_set():
            return Idle()
        container_id, request, wait_s = self._pop_due()
        if container_id is None or request is None:
            return RetryAfter(wait_s) if wait_s else Idle()
        log.info("scan_requested", container_id=container_id, reason=request.reason)
        try:
            report = scan_container(
                self.tools,
                container_id,
                stop=self.stop.is_set,
                progress=lambda _: self.pulse.mark(),
                pace=self.pace,
                pieces=self.pieces,
                buffers=self._buffers,
            )
        except UnavailableError as error:
            if error.code is Code.DISK_OUT_OF_SPACE:  # may last for days; each retry reads all data
                request = replace(request, retries_left=0)
            self._retry(container_id, request)
            return Busy()
        except RefusedError as error:
            if error.code not in GONE:
                raise
            return Busy()
        if not report.committed and not self.stop.is_set():
            if report.tripped_reason.startswith((BREAKER, SHADOW)):
                self._retry_held(container_id, request)
            else:
                self._retry(container_id, request)
        return Busy()

    def _pop_due(self) -> tuple[ContainerId | None, _Request | None, float]:
        """Remove and return the first due request: (container id, request, 0.0).

        The order is that of the priority, then that of the age. If none is due, return (None, None,
        seconds until the next request is due). The seconds are 0.0 if the queue is empty.
        """
        with self._lock:
            now_s = self.tools.clock.monotonic_s()
            self._scanned_at_s = {
                container_id: at_s
                for container_id, at_s in self._scanned_at_s.items()
                if at_s > now_s - max(self._gaps_s.values())
            }
            due = [one for one, request in self._waiting.items() if request.not_before_s <= now_s]
            if due:
                container_id = min(due, key=lambda one: self._waiting[one].priority)
                self._scanned_at_s[container_id] = now_s
                return container_id, self._waiting.pop(container_id), 0.0
            if not self._waiting:
                return None, None, 0.0
            return None, None, min(item.not_before_s for item in self._waiting.values()) - now_s

    def _retry(self, container_id: ContainerId, request: _Request) -> None:
        """Queue the request of a failed scan again, at most RETRIES_MAX times."""
        if not request.retries_left:
            log.warning("scan_retries_exhausted", container_id=container_id, reason=request.reason)
            return
        self._put_back(
            container_id, replace(request, retries_left=request.retries_left - 1), RETRY_S
        )

    def _retry_held(self, container_id: ContainerId, request: _Request) -> None:
        """Queue a request again, because the breaker held back the result of its scan.

        This happens at most once per request. The request waits until the breaker no longer
        suspects this host. If it did not wait, the scan would prolong the suspicion, and its result
        would be held back, too.
        """
        if request.was_held:
            log.warning("scan_retries_exhausted", container_id=container_id, reason=request.reason)
            return
        held_s = self.tools.guard.window_s + RETRY_S
        self._put_back(container_id, replace(request, was_held=True), held_s)

    def _put_back(self, container_id: ContainerId, request: _Request, delay_s: float) -> None:
        not_before_s = self.tools.clock.monotonic_s() + delay_s
        with self._lock:
            self._waiting.setdefault(container_id, replace(request, not_before_s=not_before_s))


def _priority(*, is_failure: bool, is_neighbour: bool, is_hint: bool) -> ScanPriority:
    if is_failure:
        return ScanPriority.FAILURE
    if is_neighbour:
        return ScanPriority.NEIGHBOUR
    return ScanPriority.HINT if is_hint else ScanPriority.ASKED
