"""Scans for which a caller waits: `suture scrub scan --wait` and the demo.

A scan takes minutes. Therefore, it runs in its own thread. The RPC can report progress, and can end
when the caller disconnects. The scan slows down while clients read, unless the caller requests full
speed. A scan without `--wait` is added to the queue of on-demand scans.
"""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Event, Thread
from typing import Final

from agent.scan.container_scan import ScanReport, StoreScanDeps, ignore, scan_container
from agent.scan.sampling.samples import ChunkSampler
from agent.scan.throttle import ScanPace
from agent.services.service_protocols import ScanMode, ScanStep
from merkle.replica import ContainerId
from suture.errors import Code, UnavailableError

SCANS_MAX: Final = 4  # running at once
WAITING_MAX: Final = 32  # calls waiting to start; each holds a server thread
PROGRESS_S: Final = 0.25  # time between two progress messages


@dataclass(eq=False)
class InteractiveScans:
    """Runs scans for waiting callers, at most `SCANS_MAX` at the same time.

    `pace` returns the rate limit for a scan of the given volume. `queue` adds a container to the
    on-demand scans, and returns False if their queue is full.
    """

    tools: StoreScanDeps
    _: KW_ONLY
    pace: Callable[[str], ScanPace]
    queue: Callable[[ContainerId], bool]

    def __post_init__(self) -> None:
        self._places = BoundedSemaphore(SCANS_MAX)
        self._line = BoundedSemaphore(WAITING_MAX)
        self._stopping = Event()
        self.sample = ChunkSampler(
            self.tools.store,
            self.tools.leases,
            self.tools.clock,
            pace=self.pace,
            request_scan=self.queue,
            is_stopping=self._stopping.is_set,
        ).run

    def stop(self) -> None:
        """Request the running scans to stop."""
        self._stopping.set()

    def run(
        self,
        container_id: ContainerId,
        is_cancelled: Callable[[], bool],
        mode: ScanMode = ScanMode.WAIT,
    ) -> Iterator[ScanStep]:
        """Scan a container. Yield steps with the progress, and at last a step with the result.

        If `SCANS_MAX` scans are running, wait, and yield steps with `is_waiting`. Raise the
        exception of the scan. Raise UnavailableError(BUSY) if `WAITING_MAX` calls are waiting
        already, if `mode` is `QUEUE` and the queue is full, or if the result could not be
        committed.
        """
        if mode is ScanMode.QUEUE:
            yield self._queued(container_id)
            return
        total_bytes = self.tools.store.replica(container_id).used_bytes
        yield from self._wait_for_place(total_bytes, is_cancelled)
        try:
            yield from self._run(container_id, total_bytes, is_cancelled, mode)
        finally:
            self._places.release()

    def _wait_for_place(
        self, total_bytes: int, is_cancelled: Callable[[], bool]
    ) -> Iterator[ScanStep]:
        """Wait until fewer than `SCANS_MAX` scans are running.

        Yield a step every PROGRESS_S seconds.
        """
        if self._places.acquire(blocking=False):
            return
        if not self._line.acquire(blocking=False):
            raise UnavailableError(
                Code.BUSY,
                f"cannot start the scan: {SCANS_MAX} requested scans are running and "
                f"{WAITING_MAX} are waiting",
                hint="try again later",
            )
        try:
            yield ScanStep(0, total_bytes, is_waiting=True)
            while not self._places.acquire(timeout=PROGRESS_S):
                if is_cancelled() or self._stopping.is_set():
                    raise UnavailableError(Code.CANCELLED, "stopped while waiting for other scans")
                yield ScanStep(0, total_bytes, is_waiting=True)
        finally:
            self._line.release()

    def _run(
        self,
        container_id: ContainerId,
        total_bytes: int,
        is_cancelled: Callable[[], bool],
        mode: ScanMode,
    ) -> Iterator[ScanStep]:
        news: SimpleQueue[ScanReport | BaseException] = SimpleQueue()
        left = Event()
        read = ByteCounter()

        def is_over() -> bool:
            return left.is_set() or self._stopping.is_set() or is_cancelled()

        def work() -> None:
            try:
                paced = self._paced(container_id, is_over) if mode is ScanMode.WAIT else None
                report = scan_container(
                    self.tools,
                    container_id,
                    stop=is_over,
                    progress=read.add,
                    pace=paced or ignore,
                    pieces=paced,
                )
                news.put(report)
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                news.put(error)

        thread = Thread(target=work, name=f"scan-requested-{container_id}", daemon=True)
        thread.start()
        try:
            while True:
                try:
                    end = news.get(timeout=PROGRESS_S)
                except Empty:
                    yield ScanStep(read.total, total_bytes)
                    continue
                yield self._last(end, total_bytes)
                return
        finally:
            left.set()
            thread.join()

    def _paced(self, container_id: ContainerId, is_over: Callable[[], bool]) -> ScanPace:
        """Return a rate limit that slows down while clients read.

        Its waits end when `is_over` returns True.
        """
        pace = self.pace(self.tools.store.volume_id(container_id))
        pace.begin(is_over)
        return pace

    def _queued(self, container_id: ContainerId) -> ScanStep:
        if not self.queue(container_id):
            raise UnavailableError(
                Code.BUSY,
                "cannot queue the scan: too many scans are waiting",
                hint="try again later",
            )
        return ScanStep(0, self.tools.store.replica(container_id).used_bytes, is_queued=True)

    def _last(self, end: ScanReport | BaseException, total_bytes: int) -> ScanStep:
        """Return the last step of a scan, with its result.

        Raise the error that ended the scan. Raise UnavailableError(BUSY) if the result could not be
        committed.
        """
        if isinstance(end, BaseException):
            raise end
        if not end.committed:
            raise UnavailableError(
                Code.BUSY,
                f"the scan of container {end.container_id} was discarded: {end.tripped_reason}",
                hint="try again",
            )
        return ScanStep(end.bytes_read, total_bytes, end.commit)


class ByteCounter:
    """Byte counter that one thread increments and another thread reads."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, count: int) -> None:
        """Add bytes to the count."""
        self.total += count
