"""Scans that somebody waits for: `suture scrub scan --wait`, the demo. Run aside, so that progress
can be told. Clients go first, unless the caller wants it otherwise. Without `--wait` a scan gets
in line.

A scan reads for minutes; the RPC that asked for it wants a word now and then, and its end when the
caller goes away.
"""

from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Event, Thread
from typing import Final

from agent.errors import Code, Unavailable
from agent.rpc.datanode.backends import ScanMode, ScanStep
from agent.scan.container_scan import ScanReport, ScanTools, ignore, scan_container
from agent.scan.sampling.samples import Samples
from agent.scan.throttle import ScanPace
from merkle.replica import ContainerId

SCANS_MAX: Final = 4  # at once
WAITING_MAX: Final = (
    32  # calls that wait for one of these places; each holds a thread of the server
)
PROGRESS_S: Final = 0.25  # between two words of progress


class RequestedScans:
    """Runs scans for callers that wait, a bounded number at once."""

    def __init__(
        self,
        tools: ScanTools,
        *,
        pace: Callable[[str], ScanPace],
        queue: Callable[[ContainerId], bool],
    ) -> None:
        """`pace` makes one for a scan of that volume; `queue` puts a container in line for the
        scans that nobody waits for, and returns False when that is full."""
        self._tools = tools
        self._pace = pace
        self._queue = queue
        self._places = BoundedSemaphore(SCANS_MAX)
        self._line = BoundedSemaphore(WAITING_MAX)
        self._stopping = Event()
        self.sample = Samples(
            tools.store,
            tools.leases,
            tools.clock,
            pace=pace,
            ask_scan=queue,
            is_stopping=self._stopping.is_set,
        ).run

    def stop(self) -> None:
        """End the scans under way, soon."""
        self._stopping.set()

    def run(
        self,
        container_id: ContainerId,
        is_cancelled: Callable[[], bool],
        mode: ScanMode = ScanMode.WAIT,
    ) -> Iterator[ScanStep]:
        """Scan, yield progress, and the result last. Raise what the scan raised.

        While `SCANS_MAX` scans run, this one waits, and its steps say so. Raise Unavailable(BUSY)
        when `WAITING_MAX` wait already, or the queue of mode `QUEUE` is full.
        """
        if mode is ScanMode.QUEUE:
            yield self._queued(container_id)
            return
        total_bytes = self._tools.store.replica(container_id).bytes_used
        yield from self._take_place(total_bytes, is_cancelled)
        try:
            yield from self._run(container_id, total_bytes, is_cancelled, mode)
        finally:
            self._places.release()

    def _take_place(self, total_bytes: int, is_cancelled: Callable[[], bool]) -> Iterator[ScanStep]:
        """Take a place to scan in; yield a step now and then until one is free."""
        if self._places.acquire(blocking=False):
            return
        if not self._line.acquire(blocking=False):
            raise Unavailable(
                Code.BUSY,
                f"{SCANS_MAX} requested scans run and {WAITING_MAX} wait already",
                hint="try again later",
            )
        try:
            yield ScanStep(0, total_bytes, is_waiting=True)
            while not self._places.acquire(timeout=PROGRESS_S):
                if is_cancelled() or self._stopping.is_set():
                    raise Unavailable(Code.CANCELLED, "stopped while it waited for other scans")
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
        read = Counter()

        def is_over() -> bool:
            return left.is_set() or self._stopping.is_set() or is_cancelled()

        def work() -> None:
            try:
                paced = self._paced(container_id, is_over) if mode is ScanMode.WAIT else None
                report = scan_container(
                    self._tools,
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
        """Return a pace that gives way to clients, and ends with the scan."""
        pace = self._pace(self._tools.store.volume_id(container_id))
        pace.begin(is_over)
        return pace

    def _queued(self, container_id: ContainerId) -> ScanStep:
        if not self._queue(container_id):
            raise Unavailable(Code.BUSY, "too many scans wait already", hint="try again later")
        return ScanStep(0, self._tools.store.replica(container_id).bytes_used, is_queued=True)

    def _last(self, end: ScanReport | BaseException, total_bytes: int) -> ScanStep:
        """Return the last step, or raise what ended the scan."""
        if isinstance(end, BaseException):
            raise end
        if not end.committed:
            raise Unavailable(
                Code.BUSY,
                f"the scan of container {end.container_id} was not kept: {end.held_because}",
                hint="try again",
            )
        return ScanStep(end.bytes_read, total_bytes, end.commit)


class Counter:
    """A sum that one thread writes and another reads."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, count: int) -> None:
        """Add to the sum."""
        self.total += count
