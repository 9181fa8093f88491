"""Watch on the files of closed containers. A change by another process triggers a scan.

Only the agent may change a closed container's chunks directory. If another process unlinks,
truncates, writes or renames a file there, the container is scanned within a second instead of
within a week. An inotify event is only a hint. If the kernel drops an event, or has no watch left
for a directory, the background scan still finds the damage later. Events are ignored while this
agent writes to the container (it then holds the lease), and shortly after.

One inotify instance and one thread, that of the worker, serve all containers.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import compress
from typing import Final

import numpy as np
import structlog
from inotify_simple import Event, INotify, flags, masks

from agent.leases import ContainerLeases
from agent.scan.ondemand import OnDemandScans
from agent.store.files.layout import holds_data
from agent.store.replica_store import ReplicaStore
from merkle.checksum_columns import U64s
from merkle.replica import TREE_STATES, ContainerId
from suture.runtime.clock import Clock
from suture.runtime.loop import Busy, RetryAfter, Step
from suture.runtime.memory import trim_heap

SYNC_S: Final = 5.0  # maximum time until a newly closed container is watched
OWN_WINDOW_S: Final = 2.0  # events of the agent's own writes arrive within this time
READ_MS: Final = 500  # maximum time until the worker notices that it should stop
SELF_EVENTS: Final = flags.DELETE_SELF | flags.MOVE_SELF
WATCHED_EVENTS: Final = (
    flags.MODIFY | flags.DELETE | masks.MOVE | SELF_EVENTS | flags.ONLYDIR | flags.DONT_FOLLOW
)

log = structlog.get_logger()


@dataclass(eq=False)
class ChangeWatch:
    """Worker that watches the chunks directories of closed containers, and requests a scan after a
    change.

    `unwatched_count` is the number of directories that could not be watched.
    """

    store: ReplicaStore
    leases: ContainerLeases
    scans: OnDemandScans
    _: KW_ONLY
    clock: Clock
    open_inotify: Callable[[], INotify] = INotify

    def __post_init__(self) -> None:
        self._inotify: INotify | None = None
        self.watched: dict[int, ContainerId] = {}  # by the watch descriptor
        self.unwatched_count = 0
        self._sync_at_s = 0.0
        self._synced: tuple[tuple[tuple[str, int], ...], int] | None = None
        self._overflow_count = 0

    @property
    def name(self) -> str:
        """Name of the worker."""
        return "change-watch"

    def step(self) -> Step:
        """Wait for changes, and request scans. Update the watches if this is due."""
        try:
            self._inotify = inotify = self._inotify or self.open_inotify()
        except OSError as error:  # the kernel's limit of inotify instances per user
            self._limit(self._closed().size, str(error), "raise fs.inotify.max_user_instances")
            return RetryAfter(SYNC_S)
        if self.clock.monotonic_s() >= self._sync_at_s:
            self._sync(inotify)
            self._sync_at_s = self.clock.monotonic_s() + SYNC_S
        for event in inotify.read(timeout=READ_MS):
            self._handle(event)
        return Busy()

    def close(self) -> None:
        """Stop watching. The worker must have stopped."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
        self.watched.clear()

    def _sync(self, inotify: INotify) -> None:
        """Watch newly closed containers, and remove the watches of containers that are gone."""
        version = (self.store.volume_set.version(), len(self.watched))
        if version == self._synced and not self.unwatched_count:
            return  # avoids reading 100,000 rows without need
        closed = self._closed()
        watched_ids = np.fromiter(self.watched.values(), np.uint64, len(self.watched))
        is_gone = ~np.isin(watched_ids, closed)
        for descriptor in list(compress(self.watched, is_gone.tolist())):
            del self.watched[descriptor]
            with suppress(OSError):  # the kernel removed it, because the directory is gone
                inotify.rm_watch(descriptor)
        self._add(inotify, np.setdiff1d(closed, watched_ids))
        self._synced = (version[0], len(self.watched))
        trim_heap()

    def _closed(self) -> U64s:
        """Return the ids of the containers to watch."""
        return np.concatenate(
            [np.zeros(0, np.uint64)]
            + [
                replicas.container_ids[replicas.are(TREE_STATES)]
                for _, replicas in self.store.columns()
            ]
        )

    def _add(self, inotify: INotify, wanted: U64s) -> None:
        """Watch as many of these containers as possible. Count the containers that cannot be
        watched, and log the reason if this number has changed. Request a scan if a directory does
        not exist."""
        missed_count, why, hint = 0, "", ""
        for index, number in enumerate(wanted):
            container_id = ContainerId(int(number))
            path = self.store.paths(container_id).chunks
            try:
                descriptor = inotify.add_watch(path, WATCHED_EVENTS)
            except FileNotFoundError:
                self.scans.request(container_id, reason="chunks directory is gone", is_hint=True)
                missed_count += 1
            except PermissionError as error:  # only this directory; others may be watched
                missed_count += 1
                why, hint = str(error), "the agent must own its volumes' directories"
            except OSError as error:  # the kernel's limit of watches
                missed_count += len(wanted) - index
                why, hint = str(error), "raise fs.inotify.max_user_watches"
                break
            else:
                self.watched[descriptor] = container_id
        self._limit(missed_count, why, hint)

    def _limit(self, missed_count: int, why: str, hint: str) -> None:
        """Record the number of containers that are not watched. Log `why` if it has changed."""
        if why and missed_count != self.unwatched_count:
            log.warning(
                "change_watch_limited",
                watched_count=len(self.watched),
                unwatched_count=missed_count,
                error=why,
                hint=hint,
            )
        self.unwatched_count = missed_count

    def _handle(self, event: Event) -> None:
        """Request a scan after an event in a chunks directory, unless this agent caused it."""
        if event.mask & flags.Q_OVERFLOW:
            self._overflow_count += 1
            log.warning("change_watch_overflowed", overflow_count=self._overflow_count)
            return
        if event.mask & flags.IGNORED:  # the next update watches the directory again if it exists
            self.watched.pop(event.wd, None)
            return
        container_id = self.watched.get(event.wd)
        if container_id is None:
            return  # not watched any more
        if not event.mask & SELF_EVENTS and not holds_data(event.name):
            return
        if self.leases.written_within(container_id, OWN_WINDOW_S):
            return
        what = f"{event.name or 'chunks directory'} changed on disk"
        self.scans.request(container_id, reason=what, is_hint=True)
