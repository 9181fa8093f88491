"""Scans that somebody waits for: `suture scan`, the demo. Run aside, so that progress can be told.

A scan reads for minutes; the RPC that asked for it wants a word now and then, and its end when the
caller goes away.
"""

from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Event, Thread
from typing import Final

from agent.errors import Code, Unavailable
from agent.rpc.server import ScanStep
from agent.runtime.scanning import ScanReport, ScanTools, scan_container
from merkle.replica import ContainerId

SCANS_MAX: Final = 4  # at once; each reads as fast as the disk gives
PROGRESS_S: Final = 0.25  # between two words of progress


class RequestedScans:
    """Runs scans for callers that wait, a bounded number at once."""

    def __init__(self, tools: ScanTools) -> None:
        self._tools = tools
        self._places = BoundedSemaphore(SCANS_MAX)
        self._stopping = Event()

    def stop(self) -> None:
        """End the scans under way, soon."""
        self._stopping.set()

    def run(
        self, container_id: ContainerId, is_cancelled: Callable[[], bool]
    ) -> Iterator[ScanStep]:
        """Scan, yield progress, and the result last. Raises what the scan raised.

        Raise Unavailable(BUSY) when `SCANS_MAX` run already.
        """
        if not self._places.acquire(blocking=False):
            raise Unavailable(
                Code.BUSY, f"{SCANS_MAX} requested scans run already", hint="try again later"
            )
        try:
            total_bytes = self._tools.store.replica(container_id).bytes_used
            yield from self._run(container_id, total_bytes, is_cancelled)
        finally:
            self._places.release()

    def _run(
        self, container_id: ContainerId, total_bytes: int, is_cancelled: Callable[[], bool]
    ) -> Iterator[ScanStep]:
        news: SimpleQueue[ScanReport | BaseException] = SimpleQueue()
        left = Event()
        read = Counter()

        def work() -> None:
            try:
                news.put(
                    scan_container(
                        self._tools,
                        container_id,
                        stop=lambda: left.is_set() or self._stopping.is_set() or is_cancelled(),
                        progress=read.add,
                    )
                )
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
