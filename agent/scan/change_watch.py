"""Watch on the files of closed containers. A change by another process causes a scan.

Only the agent may change the directory of block files of a closed container. If another process
unlinks, truncates, writes or renames a file there, the container is scanned within a second instead
of within a week. An inotify event only requests a scan. If the kernel drops an event, or cannot
watch a directory, the background scan still finds the damage later. Events are ignored while this
agent holds the lease to write to the container, and shortly after.

One inotify instance (`watchdog`'s InotifyFD) serves all containers, because a separate observer for
each directory would need its own thread.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from itertools import compress
from typing import Final

import numpy as np
import structlog
from watchdog.observers.inotify_c import (
    CallbackId,
    InotifyConstants,
    InotifyEvent,
    InotifyFD,
    Mask,
    WatchDescriptor,
)

from agent.leases import ContainerLeases
from agent.scan.ondemand import OnDemandScans
from agent.store.files.layout import holds_data
from agent.store.replica_store import ReplicaStore
from merkle.checksum_columns import U64s
from merkle.replica import TREE_STATES, ContainerId
from suture.runtime.loop import RetryAfter, Step
from suture.runtime.memory import trim_heap

SYNC_S: Final = 5.0  # maximum time until a newly closed container is watched
OWN_WINDOW_S: Final = 2.0  # events of the agent's own writes arrive within this time
SELF_EVENTS: Final = InotifyConstants.IN_DELETE_SELF | InotifyConstants.IN_MOVE_SELF
WATCHED_EVENTS: Final = Mask(
    InotifyConstants.IN_MODIFY
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_MOVE
    | SELF_EVENTS
    | InotifyConstants.IN_ONLYDIR
    | InotifyConstants.IN_DONT_FOLLOW
)
CALLBACK_ID: Final = CallbackId(1)  # one callback per directory

log = structlog.get_logger()


@dataclass(eq=False)
class ChangeWatch:
    """Worker that watches the directories of closed containers, and requests a scan after a change.

    `unwatched_count` is the number of directories that could not be watched.
    """

    store: ReplicaStore
    leases: ContainerLeases
    scans: OnDemandScans
    _: KW_ONLY
    open_inotify: Callable[[], InotifyFD] = InotifyFD

    def __post_init__(self) -> None:
        self._inotify: InotifyFD | None = None
        self.watched: dict[WatchDescriptor, ContainerId] = {}
        self.unwatched_count = 0
        self._synced: tuple[tuple[tuple[str, int], ...], int] | None = None
        self._overflow_count = 0

    @property
    def name(self) -> str:
        """Name of the worker."""
        return "change-watch"

    def step(self) -> Step:
        """Watch containers that were closed recently. Stop watching deleted containers."""
        try:
            inotify = self._running_inotify()
        except OSError as error:  # the kernel's limit of inotify instances per user
            self._limit(self._closed().size, str(error), "raise fs.inotify.max_user_instances")
            return RetryAfter(SYNC_S)
        version = (self.store.volume_set.version(), len(self.watched))
        if version == self._synced and not self.unwatched_count:
            return RetryAfter(SYNC_S)  # avoids reading 100,000 rows without need
        closed = self._closed()
        watched = self.watched.copy()
        watched_ids = np.fromiter(watched.values(), np.uint64, len(watched))
        is_gone = ~np.isin(watched_ids, closed)
        for descriptor in compress(watched, is_gone.tolist()):
            if self.watched.pop(descriptor, None) is not None:  # else the kernel removed it
                inotify.remove_callbacks([(descriptor, CALLBACK_ID)])
        self._add(inotify, np.setdiff1d(closed, watched_ids))
        self._synced = (version[0], len(self.watched))
        trim_heap()
        return RetryAfter(SYNC_S)

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            self._inotify.stop()
            self._inotify.join()
            self._inotify = None
        self.watched.clear()

    def _closed(self) -> U64s:
        """Return the ids of the closed containers, which are to be watched."""
        return np.concatenate(
            [np.zeros(0, np.uint64)]
            + [
                replicas.container_ids[replicas.are(TREE_STATES)]
                for _, replicas in self.store.columns()
            ]
        )

    def _running_inotify(self) -> InotifyFD:
        """Return the running inotify thread, or start one.

        Raise OSError if the kernel's limit of inotify instances is reached.
        """
        if self._inotify is not None and not self._inotify.is_alive():
            log.error("change_watch_stopped", watched_count=len(self.watched))
            self._inotify = None
            self.watched.clear()
        if self._inotify is None:
            self._inotify = self.open_inotify()
            self._inotify.start()
        return self._inotify

    def _add(self, inotify: InotifyFD, wanted: U64s) -> None:
        """Watch as many of these containers as possible.

        Count the containers that cannot be watched, and log the reason if this number has changed.
        If the directory of a container does not exist, request a scan.
        """
        missed_count, why, hint = 0, "", ""
        for index, number in enumerate(wanted):
            container_id = ContainerId(int(number))
            path = os.fsencode(self.store.paths(container_id).chunks)
            try:
                descriptor = self._watch(inotify, path)
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

    def _watch(self, inotify: InotifyFD, path: bytes) -> WatchDescriptor:
        """Watch a directory, and return the descriptor of the watch.

        Raise PermissionError if the agent cannot read the directory (watchdog returns -1 in this
        case), and OSError for other failures.
        """
        descriptor = inotify.add_callback(path, WATCHED_EVENTS, self, CALLBACK_ID)
        if descriptor < 0:
            inotify.remove_callbacks([(descriptor, CALLBACK_ID)])
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return descriptor

    def _limit(self, missed_count: int, why: str, hint: str) -> None:
        """Record the number of containers that are not watched. If it has changed, log `why`."""
        if why and missed_count != self.unwatched_count:
            log.warning(
                "change_watch_limited",
                watched_count=len(self.watched),
                unwatched_count=missed_count,
                error=why,
                hint=hint,
            )
        self.unwatched_count = missed_count

    # The inotify thread calls the methods below. They must not raise or wait for long. This object
    # is the callback (watchdog's WatchCallback) of every directory, because one object per
    # directory would need megabytes on a large host.

    def on_event(self, event: InotifyEvent) -> None:
        """Request a scan of a container after an event in its directory.

        Do nothing if this agent caused the event.
        """
        container_id = self.watched.get(event.wd)
        name = os.fsdecode(event.name)
        if container_id is None:
            return  # not watched any more
        if not event.mask & SELF_EVENTS and not holds_data(name):
            return
        if self.leases.written_within(container_id, OWN_WINDOW_S):
            return
        what = f"{name or 'chunks directory'} changed on disk"
        self.scans.request(container_id, reason=what, is_hint=True)

    def on_queue_overflow(self) -> None:
        """Count and log that the kernel dropped events."""
        self._overflow_count += 1
        log.warning("change_watch_overflowed", overflow_count=self._overflow_count)

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        """Forget a directory that the kernel no longer watches.

        If it exists, the next step watches it again.
        """
        self.watched.pop(wd, None)
