"""Adjacent scans: requests to scan the replicas that are nearest to damage on the same disk.

When a scan finds damage, this worker maps the damaged chunks and the block files of the volume to
extents on the device. Then it requests on-demand scans of the nearest replicas. The mapping has its
own rate limit, in which each file counts as a read of 4 KiB.

If the file system does not report extents, the worker requests scans of the replicas with the
nearest ids, because these were written at about the same time. The log names the method.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

import structlog

from agent.store.disk_adjacency import DamagedExtent, MappedFile, StoreDiskMap, distance
from agent.store.files.fiemap import NOT_SUPPORTED, Extent
from merkle.replica import ContainerId
from scanner.finding import ScanFinding
from suture.runtime.clock import Clock
from suture.runtime.loop import Busy, Idle, Step

PLACES_MAX: Final = 64  # damaged chunks of one scan that a search uses; others are ignored
WAITING_MAX: Final = 32  # searches that may wait
NEIGHBOURS_MAX: Final = 8  # replicas requested for one scan's damage
NEAR_BYTES: Final = 64 * 1024**2  # maximum distance of a neighbour
FILES_PER_STEP: Final = 64
FILES_MAX: Final = 200_000  # files mapped in one search
FILE_COST_BYTES: Final = 4_096  # cost of an inode and its map
AGAIN_S: Final = 3600.0  # minimum time between two searches for one replica

log = structlog.get_logger()


@dataclass(slots=True)
class _Search:
    """A search for the replicas that are near the damage of one replica on the disk."""

    volume_id: str
    container_id: ContainerId
    places: tuple[DamagedExtent, ...]
    bad: list[Extent] = field(default_factory=list)
    files: Iterator[MappedFile] | None = None
    nearest: dict[ContainerId, int] = field(default_factory=dict)
    file_count: int = 0


@dataclass(eq=False)
class AdjacentScanWorker:
    """Worker that searches for the replicas near damage on the same disk, and requests their scans.

    Any thread may call `queue_search`. `ask` requests a scan of a container with a reason, and
    returns False if the queue is full. `pace` gets the number of bytes read, and waits until the
    next read is allowed.
    """

    name = "neighbours"

    places: StoreDiskMap
    ask: Callable[[ContainerId, str], bool]
    _: KW_ONLY
    pace: Callable[[int], None]
    clock: Clock

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Search] = deque()
        self._followed_at_s: dict[ContainerId, float] = {}
        self._search: _Search | None = None
        self.wake: Callable[[], None] = lambda: None  # wakes the worker's loop; set by its creator

    def queue_search(self, volume_id: str, damage: Sequence[ScanFinding]) -> None:
        """Queue a search for replicas near the damage that a scan of one replica found.

        Do nothing if no finding is about a chunk, if a search for this replica was queued less than
        AGAIN_S seconds ago, or if WAITING_MAX searches are queued.
        """
        places = tuple(_place(one) for one in damage if _has_place(one))[:PLACES_MAX]
        if not places:
            return
        container_id = places[0].container_id
        with self._lock:
            now_s = self.clock.monotonic_s()
            last_s = self._followed_at_s.get(container_id, float("-inf"))
            if now_s - last_s < AGAIN_S or len(self._waiting) >= WAITING_MAX:
                return  # its neighbours were requested recently, or too many searches wait
            self._followed_at_s = {
                one: at_s for one, at_s in self._followed_at_s.items() if now_s - at_s < AGAIN_S
            }
            self._followed_at_s[container_id] = now_s
            self._waiting.append(_Search(volume_id, container_id, places))
        self.wake()

    def step(self) -> Step:
        """Continue the current search, or begin the next one."""
        search = self._search
        if search is None:
            with self._lock:
                search = self._search = self._waiting.popleft() if self._waiting else None
            if search is None:
                return Idle()
        try:
            is_over = self._go_on(search)
        except OSError as error:
            self._search = None
            if error.errno not in NOT_SUPPORTED:
                log.warning(
                    "adjacency_unknown",
                    volume_id=search.volume_id,
                    container_id=search.container_id,
                    error=str(error),
                )
            self._request_scans(search, self._by_id(search), how="ids", why=str(error))
            return Busy()
        if is_over:
            self._search = None
            near = sorted(search.nearest, key=lambda one: (search.nearest[one], one))
            self._request_scans(search, near, how="places", why="")
        return Busy()

    def _go_on(self, search: _Search) -> bool:
        """Map some files to their extents. Return True if the search is complete.

        Raise OSError if the extents cannot be read.
        """
        if search.files is None:
            search.bad = self.places.bad(search.places)
            others = [
                one for one in self.places.replicas(search.volume_id) if one != search.container_id
            ]
            search.files = iter(self.places.files(others)) if search.bad else iter(())
        for count in range(1, FILES_PER_STEP + 1):
            file = next(search.files, None)
            if file is None or search.file_count >= FILES_MAX:
                self.pace(count * FILE_COST_BYTES)
                return True
            search.file_count += 1
            if file.extents:
                gap = distance(search.bad, file.extents)
                if gap <= NEAR_BYTES:
                    known = search.nearest.get(file.container_id, gap)
                    search.nearest[file.container_id] = min(gap, known)
        self.pace(FILES_PER_STEP * FILE_COST_BYTES)
        return False

    def _by_id(self, search: _Search) -> list[ContainerId]:
        """Return the other replicas of the volume, with the nearest container ids first."""
        others = [
            one for one in self.places.replicas(search.volume_id) if one != search.container_id
        ]
        return sorted(others, key=lambda one: (abs(one - search.container_id), one))

    def _request_scans(
        self, search: _Search, near: Sequence[ContainerId], *, how: str, why: str
    ) -> None:
        """Request scans of the first NEIGHBOURS_MAX replicas in `near`, and log the requests."""
        reason = f"it lies beside damage of container {search.container_id}"
        asked = [one for one in near[:NEIGHBOURS_MAX] if self.ask(one, reason)]
        log.info(
            "adjacent_scans_requested",
            volume_id=search.volume_id,
            container_id=search.container_id,
            how=how,
            why=why,
            asked=asked,
            near_count=len(near),
            file_count=search.file_count,
            is_complete=search.file_count < FILES_MAX,
        )


def _has_place(finding: ScanFinding) -> bool:
    """Return whether a finding reports damage of a chunk.

    Only then can the position of the damage on the disk be found.
    """
    return finding.is_damage and finding.offset >= 0 and finding.block_id > 0


def _place(finding: ScanFinding) -> DamagedExtent:
    return DamagedExtent(
        finding.container_id, finding.block_id, finding.offset, max(finding.length_bytes, 1)
    )
