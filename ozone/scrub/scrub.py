"""A scrub, which reads every closed container of the given volumes once.

Each volume has its own thread, so that a scrub takes as long as the slowest volume. If a volume
fails or is absent, the others are still read. An interrupted scrub continues with the containers
that it has not read yet. A lock on the state directory prevents a second scrub at the same time.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agent.leases import ContainerLeases
from agent.scan.container_scan import ScanDeps, VerdictBreaker, scan_container
from agent.scan.throttle import IoPressure, ScanPace
from agent.store.direct_io import ReadBuffers
from agent.store.index.facts import ScanBase
from merkle.replica import TREE_STATES, ContainerId, ReplicaState
from ozone.disk.database import clear_scratch, library
from ozone.disk.layout import DATABASE, HDDS, OzoneVolume, check_there, find_volume
from ozone.scrub.history import History
from ozone.scrub.reader import OzoneReader
from ozone.scrub.result import ContainerResult
from ozone.scrub.store import ContainerOnDisk, OzoneStore
from scanner.finding import ScanFinding
from scanner.scan_rate_control import PaceLimits
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.clock import Clock, SystemClock

ROOT_STATE: Final = Path("/var/lib/suture-ozone")
STATE_DIR_DEFAULT: Final = f"{ROOT_STATE} for root, else ~/.local/state/suture-ozone"
SCRATCH: Final = "views"
LOCK: Final = "lock"
BEGIN_BYTES_PER_S: Final = 64 * 1024**2  # initial rate; reduced while others use the disk
RESUMABLE_S: Final = 7 * 86_400.0  # older cursors of partial reads are discarded
WAIT_S: Final = 1.0  # poll interval for Ctrl-C


@dataclass(frozen=True, slots=True, kw_only=True)
class OzoneTools(ScanDeps[OzoneStore]):
    """Services for the scans of one Ozone volume."""

    leases: ContainerLeases = field(default_factory=ContainerLeases)

    def open_reader(self, base: ScanBase, **options: Any) -> OzoneReader:
        """Return a reader of the replica that is scanned.

        `base` is its state at the start of the scan.
        """
        return self.store.open_reader(base, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOptions:
    """The options of a scrub."""

    data_dirs: Sequence[Path]
    state_dir: Path
    database_dirs: Sequence[Path] = ()
    container_ids: frozenset[ContainerId] = frozenset()
    """The containers to scrub. If it is empty, all containers are scrubbed."""
    restart: bool = False
    """Start a new scrub of all containers, even if an earlier one is unfinished."""
    bytes_per_s_max: int = 0
    """Maximum rate per volume in bytes per second; 0 = limited only by other users of the disk."""


def _is_not_told(_volume: OzoneVolume | Path, _error: Exception) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ScrubListener:
    """Callbacks that report the progress of a scrub.

    The threads of all volumes call them, but only one thread at a time. An exception in a callback
    ends the scrub.
    """

    begun: Callable[[OzoneVolume, int, int], None]  # the volume, containers and bytes to read
    read: Callable[[int], None]  # called after each read with its bytes
    done: Callable[[ContainerResult], None]
    failed: Callable[[OzoneVolume, Exception], None] = _is_not_told  # the volume could not be read
    absent: Callable[[Path, Exception], None] = _is_not_told  # the directory has no volume


def default_state_dir() -> Path:
    """Return the default directory for the state of scrubs.

    This is a directory of the system for root, and otherwise one of the user (XDG_STATE_HOME).
    Raise RefusedError if the user has no home directory.
    """
    if os.geteuid() == 0:
        return ROOT_STATE
    try:
        home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    except RuntimeError as error:  # the user id has no passwd entry, and HOME is unset
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot choose a directory for the state of scrubs: user {os.geteuid()} has no home",
            hint="choose a directory with --state-dir",
        ) from error
    return Path(home) / "suture-ozone"


def find_volumes(
    wish: ScrubOptions, absent: Callable[[Path, Exception], None] = _is_not_told
) -> list[OzoneVolume]:
    """Return the volumes to read. Report directories without a volume to `absent`.

    Raise RefusedError if a path is invalid. If only one directory is given, raise its error instead
    of reporting it.
    """
    library()
    volumes: list[OzoneVolume] = []
    for path in wish.data_dirs:
        try:
            volume = find_volume(path)
        except (RefusedError, OSError) as error:
            if len(wish.data_dirs) == 1:
                raise
            absent(path, error)
            continue
        check_place(path, volume, volumes, wish.state_dir)
        volumes.append(volume)
    return volumes


def check_place(
    path: Path, volume: OzoneVolume, others: Sequence[OzoneVolume], state_dir: Path
) -> None:
    """Raise RefusedError if a volume cannot be scrubbed together with `others`.

    This is the case if it is given twice, or belongs to another cluster or datanode. Also raise
    RefusedError if the state directory is on the volume.
    """
    for other in others:
        for what, ours, theirs in (
            ("cluster", volume.cluster_id, other.cluster_id),
            ("datanode", volume.datanode_id, other.datanode_id),
        ):
            if ours != theirs:
                raise RefusedError(
                    Code.MALFORMED_REQUEST,
                    f"{path} is of {what} {ours}, and {other.hdds} of {what} {theirs}",
                    hint="name the volumes of one datanode in a command",
                )
    if any(other.storage_id == volume.storage_id for other in others):
        raise RefusedError(
            Code.MALFORMED_REQUEST, f"{path}: volume {volume.storage_id} is named twice"
        )
    if state_dir.resolve().is_relative_to(volume.hdds.resolve()):
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"cannot keep results in {state_dir}: it is on Ozone's volume, which is only read",
            hint="choose another directory with --state-dir",
        )


def database_of(volume: OzoneVolume, others: Sequence[Path]) -> Path:
    """Return the path of the RocksDB of a volume.

    It is below one of the directories `others` if it exists there, and otherwise on the volume.
    """
    for other in others:
        for top in (other / "db", other / HDDS, other):
            path = top / volume.cluster_id / volume.storage_id / DATABASE
            if path.is_dir():
                return path
    return volume.database


@contextmanager
def state(state_dir: Path) -> Iterator[Path]:
    """Lock the state directory for a `with` block, which receives a directory for temporary files.

    Raise RefusedError if another process holds the lock, and OSError if the directory cannot be
    used.
    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedError(
                Code.VOLUME_IN_USE,
                f"another scrub uses {state_dir}",
                hint="wait for it, or name another --state-dir",
            ) from error
        scratch = state_dir / SCRATCH
        clear_scratch(scratch)
        yield scratch
    finally:
        os.close(fd)


def scrub(wish: ScrubOptions, watched: ScrubListener, clock: Clock | None = None) -> None:
    """Scrub the volumes.

    Every container, and each volume that is absent or cannot be read, is reported to `watched`. If
    only one volume was given, raise its error.
    """
    clock = clock or SystemClock()
    volumes = find_volumes(wish, watched.absent)
    if not volumes:
        return
    with state(wish.state_dir) as scratch:
        shared = _ScrubDeps(wish, _in_turns(watched), clock, scratch)
        runs = [_Run(shared, volume) for volume in volumes]
        with ThreadPoolExecutor(len(runs), "scrub") as pool:
            futures = [pool.submit(run) for run in runs]
            try:
                while wait(futures, WAIT_S, FIRST_EXCEPTION).not_done:
                    if any(future.done() and future.exception() for future in futures):
                        break
            finally:  # also after Ctrl-C, so that results are stored before the exit
                shared.stop.set()
        for future in futures:
            future.result()
    failed = [run.failed for run in runs if run.failed is not None]
    if failed and len(wish.data_dirs) == 1:
        raise failed[0]


def _in_turns(watched: ScrubListener) -> ScrubListener:
    """Return callbacks that hold a common lock while they run, so that only one runs at a time."""
    lock = threading.Lock()

    def one_at_a_time(tell: Callable[..., None]) -> Callable[..., None]:
        def report(*facts: Any) -> None:
            with lock:
                tell(*facts)

        return report

    return ScrubListener(
        one_at_a_time(watched.begun),
        one_at_a_time(watched.read),
        one_at_a_time(watched.done),
        one_at_a_time(watched.failed),
        watched.absent,
    )


class _ScrubDeps:
    """Objects that are shared by the threads of all volumes in a scrub."""

    def __init__(
        self, wish: ScrubOptions, watched: ScrubListener, clock: Clock, scratch: Path
    ) -> None:
        self.wish = wish
        self.watched = watched
        self.clock = clock
        self.scratch = scratch
        self.guard = VerdictBreaker(clock=clock)
        self.pressure = IoPressure(clock)
        self.stop = threading.Event()


class _Run:
    """The scrub of one volume, which runs in a thread."""

    def __init__(self, shared: _ScrubDeps, volume: OzoneVolume) -> None:
        self.failed: Exception | None = None
        self._shared = shared
        self._volume = volume

    def __call__(self) -> None:
        try:
            self._scrub()
        except (SutureError, OSError) as error:
            self.failed = error
            self._shared.watched.failed(self._volume, error)

    def _scrub(self) -> None:
        shared, volume = self._shared, self._volume
        database = database_of(volume, shared.wish.database_dirs)
        history = History(shared.wish.state_dir / f"{volume.storage_id}.sqlite")
        try:
            store = OzoneStore(volume, history, shared.scratch, shared.clock, database=database)
            tools = OzoneTools(store=store, guard=shared.guard, clock=shared.clock)
            _VolumeScrub(tools, shared).run()
        finally:
            history.close()


class _VolumeScrub:
    def __init__(self, tools: OzoneTools, shared: _ScrubDeps) -> None:
        self._tools = tools
        self._store = tools.store
        self._wish = shared.wish
        self._watched = shared.watched
        self._stop = shared.stop
        self._buffers = ReadBuffers()
        limits = PaceLimits(ceiling_bytes_per_s=shared.wish.bytes_per_s_max)
        self._pace = ScanPace(limits, shared.stop.wait, clock=tools.clock, pressure=shared.pressure)
        self._pace.begin_at(BEGIN_BYTES_PER_S)

    def run(self) -> None:
        history, clock = self._store.history, self._tools.clock
        is_whole = not self._wish.container_ids
        begun_at_ms = (
            history.begin_round(clock.now_ms(), restart=self._wish.restart) if is_whole else 0
        )
        listing = self._store.listing()
        wanted = [item for item in listing.replicas if self._is_wanted(item.paths.container_id)]
        read_at_ms = history.read_at_ms()
        fresh = {
            item.paths.container_id
            for item in wanted
            if is_whole and read_at_ms.get(item.paths.container_id, 0) >= begun_at_ms
        }
        closed = [item for item in wanted if item.descriptor.state in TREE_STATES]
        waiting = [item for item in closed if item.paths.container_id not in fresh]
        used_bytes = sum(item.used_bytes for item in waiting)
        self._watched.begun(self._store.volume, len(waiting), used_bytes)
        for result in listing.refused:
            if self._is_wanted(result.container_id):
                self._watched.done(result)
        for item in wanted:
            result = self._one(item, is_fresh=item.paths.container_id in fresh)
            if self._stop.is_set():
                return
            self._watched.done(result)
        if is_whole:
            self._store.forget_gone(listing)
            history.end_round(clock.now_ms())

    def _is_wanted(self, container_id: ContainerId) -> bool:
        return not self._wish.container_ids or container_id in self._wish.container_ids

    def _one(self, item: ContainerOnDisk, *, is_fresh: bool) -> ContainerResult:
        container_id = item.paths.container_id
        if item.descriptor.state not in TREE_STATES:
            state = item.descriptor.state
            doing = "deleted" if state is ReplicaState.DELETED else "written"
            return self._unread(item, f"{state}: still being {doing}", is_open=True)
        if not is_fresh:
            try:
                self._pace.begin(self._stop.is_set)
                report = scan_container(
                    self._tools,
                    container_id,
                    stop=self._stop.is_set,
                    progress=self._watched.read,
                    pace=self._pace,
                    pieces=self._pace,
                    buffers=self._buffers,
                    resumable_s=RESUMABLE_S,
                )
            except OSError as error:  # only this container failed; continue with the others
                return self._unread(item, str(error))
            except SutureError as error:
                is_gone = error.code is Code.CONTAINER_NOT_FOUND
                if is_gone:
                    check_there(self._store.volume)
                if self._store.unkept is not None:  # report the result although it cannot be stored
                    return replace(self._store.unkept, why=error_text(error))
                why = f"moved or deleted meanwhile: {error}" if is_gone else error_text(error)
                return self._unread(item, why, is_open=is_gone)
            if not report.committed:
                return self._unread(item, report.tripped_reason, report.findings)
        result = self._store.history.result(container_id)
        assert result is not None, "a committed scan is in the history"
        return result

    def _unread(
        self,
        item: ContainerOnDisk,
        why: str,
        findings: tuple[ScanFinding, ...] = (),
        *,
        is_open: bool = False,
    ) -> ContainerResult:
        return ContainerResult(
            container_id=item.paths.container_id,
            storage_id=self._store.volume.storage_id,
            state=item.descriptor.state.value,
            replica_index=item.descriptor.replica_index,
            schema=item.descriptor.schema,
            findings=findings,
            finding_count=len(findings),
            why=why,
            is_open=is_open,
        )


def error_text(error: Exception) -> str:
    """Return the text of an error, with its hint for the operator."""
    hint = error.hint if isinstance(error, SutureError) else ""
    return f"{error} ({hint})" if hint else str(error)
