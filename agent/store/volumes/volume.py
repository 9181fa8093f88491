"""A volume: formatted once, and used by one process at a time.

The kernel holds the lock (flock), and releases it when its process ends. The lock file names the
process. A second process shows this name in its error message.
"""

import fcntl
import os
import stat
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.store.files.layout import (
    VERSION_BYTES_MAX,
    ReplicaPaths,
    VolumeLayout,
    VolumeVersion,
    check_name,
    decode_version,
)
from agent.store.index.environment import Index
from agent.store.index.facts import VolumeFacts
from agent.store.options import StoreOptions
from agent.store.verification_log.log_files import VerificationLog
from agent.store.volumes.directory_guard import check_volume
from agent.store.volumes.own_places import free_place, free_places
from agent.store.volumes.volume_registry import check_kept, check_new
from merkle.replica import LAYOUT_VERSION, ContainerId
from suture.errors import BlockFailed, Code, RefusedError, SutureError, UnavailableError
from suture.runtime.durable import (
    DIRECTORY_MODE,
    FILE_MODE,
    disk_errors,
    make_directories,
    read_head,
    remove_file,
    replace_file,
    sync_all,
    sync_directory,
    write_all,
)

PATHS_KEPT: Final = 1_024  # cached replica paths; building one costs a third of a small read
COMMAND_CHARS_MAX: Final = 200
ROOMY: Final = 0.9  # volumes with this share of the most free space compete by replica count


@dataclass(frozen=True, slots=True)
class VolumeTotals:
    """Sums over all replicas of a volume.

    `version` is the index version that was counted, `at_s` the time of the count, and `cost_s` its
    duration in seconds.
    """

    version: int
    at_s: float
    cost_s: float
    used_bytes: int
    container_count: int


@dataclass(frozen=True, slots=True, eq=False)
class Volume:
    """An open volume.

    `counted` caches sums over the index rows. `paths_kept` caches the paths of replicas.
    """

    layout: VolumeLayout
    version: VolumeVersion
    index: Index
    lock: "VolumeLock"
    verification: VerificationLog
    device: int  # number of the file system
    counted: dict[str, VolumeTotals] = field(default_factory=dict)
    paths_kept: dict[ContainerId, ReplicaPaths] = field(default_factory=dict)

    @property
    def volume_id(self) -> str:
        """Id of the volume."""
        return self.version.volume_id

    def paths(self, container_id: ContainerId) -> ReplicaPaths:
        """Return the paths of a replica's files."""
        found = self.paths_kept.get(container_id)
        if found is None:
            if len(self.paths_kept) >= PATHS_KEPT:
                self.paths_kept.clear()
            found = self.paths_kept[container_id] = self.layout.replica(container_id)
        return found

    def available_bytes(self) -> int:
        """Return the free space that this process may use, in bytes."""
        with disk_errors(self.layout.volume):
            space = os.statvfs(self.layout.volume)
        return space.f_bavail * space.f_frsize

    def capacity_bytes(self) -> int:
        """Return the size of the file system in bytes."""
        with disk_errors(self.layout.volume):
            space = os.statvfs(self.layout.volume)
        return space.f_blocks * space.f_frsize

    def close(self, *, is_well: bool = True) -> None:
        """Close the index and release the lock.

        If `is_well` is False, the next process that opens the volume checks the complete index.
        """
        self.index.close()
        if is_well:
            self.lock.release()
        else:
            self.lock.leave()


def open_volume(
    path: Path, *, cluster_id: str, datanode_id: str, options: StoreOptions, expected: str = ""
) -> Volume:
    """Open a volume, and format it if it is empty. The caller then runs the recovery.

    `expected` is the id of the volume that was at this path before and is now missing, or "". If it
    is set, an empty directory is not formatted.

    Raise `RefusedError(VOLUME_IN_USE)` if another process uses the volume. Raise WRONG_CLUSTER or
    WRONG_DATANODE if the volume belongs to another cluster or datanode. Raise INCONSISTENT_VOLUME
    if its files contradict each other, or if it must not be formatted. Raise `VolumeFailed` if the
    disk or the index does not work.
    """
    check_name(cluster_id, "cluster id")
    check_name(datanode_id, "datanode id")
    layout = VolumeLayout(Path(os.path.realpath(path)), cluster_id)
    with disk_errors(path):
        check_volume(layout)
        try:
            layout.version.lstat()
        except (FileNotFoundError, NotADirectoryError):
            check_new(layout, expected, fstab=options.fstab)
        for directory in (layout.volume, layout.hdds):
            if not directory.is_dir():
                directory.mkdir(DIRECTORY_MODE)
                sync_directory(directory.parent)
    _free_lock(layout, datanode_id)
    lock = lock_volume(layout)
    try:
        if lock.was_left:
            _keep_what_was_left(layout)
        version = _version(layout, datanode_id, options)
        free_places(layout)
        check_kept(layout)
        with disk_errors(path):
            for directory in layout.directories():
                make_directories(directory, below=layout.hdds)
        index = Index(
            layout.database,
            map_bytes=options.lmdb_map_bytes,
            check_whole=lock.was_left,
            now_ms=options.now_ms,
        )
        with disk_errors(layout.new):
            remove_file(layout.new)
            device = layout.volume.stat().st_dev
    except BaseException:
        lock.leave()
        raise
    log = verification_log(layout, version, options)
    return Volume(layout, version, index, lock, log, device)


def verification_log(
    layout: VolumeLayout, version: VolumeVersion, options: StoreOptions
) -> VerificationLog:
    """Open the verification log of a volume.

    This never fails. If entries cannot be written, a later entry has the number of missing entries.
    """
    about = {
        "cluster_id": version.cluster_id,
        "datanode_id": version.datanode_id,
        "volume_id": version.volume_id,
        "software": options.software,
    }
    return VerificationLog(
        layout.verification,
        about,
        now_ms=options.now_ms,
        keep_ms=options.verification_keep_ms,
        file_bytes_max=options.verification_file_bytes_max,
    )


def _keep_what_was_left(layout: VolumeLayout) -> None:
    """Sync the file system, because a killed process may have left unsynced files and names.

    This process sees those changes in the page cache, assumes that they are durable, and would not
    sync them again. Without this sync, a power failure could lose them and the data that depends on
    them.
    """
    with disk_errors(layout.hdds):
        sync_all(layout.hdds)


def _free_lock(layout: VolumeLayout, datanode_id: str) -> None:
    """Rename a foreign object at the path of the lock file.

    Do nothing if the volume does not belong to this datanode.
    """
    with suppress(OSError, SutureError):  # `_version` reports the fault
        if stat.S_ISREG(layout.lock.lstat().st_mode):
            return
        version = decode_version(read_head(layout.version, VERSION_BYTES_MAX), layout.version)
        check_owner(version, layout, datanode_id)
        free_place(layout.lock, stat.S_ISREG)


def _version(layout: VolumeLayout, datanode_id: str, options: StoreOptions) -> VolumeVersion:
    with disk_errors(layout.version):
        try:
            data = read_head(layout.version, VERSION_BYTES_MAX)
        except FileNotFoundError as error:
            if os.path.lexists(layout.version):
                raise RefusedError(
                    Code.INCONSISTENT_VOLUME, f"{layout.version} {error.strerror}"
                ) from error
            return _format(layout, datanode_id, options)
    version = decode_version(data, layout.version)
    check_owner(version, layout, datanode_id)
    return version


def check_owner(version: VolumeVersion, layout: VolumeLayout, datanode_id: str) -> None:
    """Raise RefusedError if `version` names another cluster or datanode."""
    if version.cluster_id != layout.cluster_id:
        raise RefusedError(
            Code.WRONG_CLUSTER,
            f"cannot use volume {layout.version}: it belongs to cluster {version.cluster_id}, "
            f"not {layout.cluster_id}",
        )
    if version.datanode_id != datanode_id:
        raise RefusedError(
            Code.WRONG_DATANODE,
            f"cannot use volume {layout.version}: it belongs to datanode "
            f"{version.datanode_id}, not {datanode_id}",
            hint="check for a moved disk or a changed datanode id",
        )


def _format(layout: VolumeLayout, datanode_id: str, options: StoreOptions) -> VolumeVersion:
    version = VolumeVersion(
        layout_version=LAYOUT_VERSION,
        cluster_id=layout.cluster_id,
        datanode_id=datanode_id,
        volume_id=f"DS-{uuid.uuid4()}",
        created_at_ms=options.now_ms(),
    )
    replace_file(layout.new, b"new\n")  # removed when there is an index; see check_kept
    replace_file(layout.version, version.encode())
    return version


@dataclass(frozen=True, slots=True)
class VolumeLock:
    """The lock of a volume, held by this process.

    `was_left` is True if the last process did not record a clean close, because it was killed or
    the volume failed.
    """

    fd: int
    was_left: bool

    def release(self) -> None:
        """Release the lock, and record that the volume was closed cleanly."""
        with suppress(OSError):  # if this fails, the next process checks the complete index
            if os.fstat(self.fd).st_nlink == 1:
                os.ftruncate(self.fd, 0)
        self.leave()

    def leave(self) -> None:
        """Release the lock without recording a clean close.

        The next process that opens the volume then checks the complete index.
        """
        os.close(self.fd)


def lock_volume(layout: VolumeLayout) -> VolumeLock:
    """Lock the volume for this process.

    Raise `RefusedError(VOLUME_IN_USE)`, which names the process, if another process holds the lock.
    """
    with disk_errors(layout.lock):
        fd = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        try:
            return _locked(layout, fd)
        except BaseException:
            os.close(fd)
            raise


@contextmanager
def reading_lock(layout: VolumeLayout) -> Iterator[None]:
    """Prevent agents from using a volume during a `with` block, which only reads it.

    The lock is a shared flock. Nothing is written, so this works on a read-only mount. Raise
    `RefusedError(VOLUME_IN_USE)` if an agent uses the volume.
    """
    try:
        fd = os.open(layout.lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield  # there is no readable lock file, so no process can hold it
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _in_use(layout, fd) from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(fd)


def _locked(layout: VolumeLayout, fd: int) -> VolumeLock:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _in_use(layout, fd) from error
    facts = os.fstat(fd)
    if facts.st_nlink == 1:  # otherwise the file has other names, and is not written
        _sign(fd)
    return VolumeLock(fd, was_left=facts.st_size > 0)


def _sign(fd: int) -> None:
    command = " ".join(sys.orig_argv)[:COMMAND_CHARS_MAX].replace("\n", " ")
    os.ftruncate(fd, 0)
    write_all(fd, f"{os.getpid()}\n{command}\n".encode(), 0)


def _in_use(layout: VolumeLayout, fd: int) -> RefusedError:
    pid, _, command = os.pread(fd, 4096, 0).decode("utf-8", "replace").partition("\n")
    reader = "a process that only reads it: suture fsck, sample or salvage"
    return RefusedError(
        Code.VOLUME_IN_USE,
        f"volume {layout.volume} is held by "
        + (f"pid {pid} ({command.strip()})" if pid else reader),
        hint="stop that process, or configure other volumes",
        pid=pid,
        volume=layout.volume,
    )


def replica_count(volume: Volume) -> int:
    """Return the number of replicas of a volume."""
    with volume.index.read() as rows:
        return rows.replica_count()


def choose_volume(volumes: Sequence[Volume], reserve_bytes: int) -> Volume:
    """Return the volume for a new replica.

    Among the volumes with at least 0.9 of the most free space, choose the one with the fewest
    replicas. Raise `UnavailableError(DISK_OUT_OF_SPACE)` if no volume has `reserve_bytes` of free
    space.
    """
    available_bytes = {volume: volume.available_bytes() for volume in volumes}
    most_bytes = max(available_bytes.values(), default=-1)
    if most_bytes < reserve_bytes:
        raise UnavailableError(
            Code.DISK_OUT_OF_SPACE,
            "no volume has more free space than its reserve",
            hint="free space or add a volume",
        )
    roomy = [volume for volume in volumes if available_bytes[volume] >= most_bytes * ROOMY]
    return min(roomy, key=replica_count)


def check_space(volume: Volume, length_bytes: int, *, reserve_bytes: int) -> None:
    """Raise UnavailableError if `length_bytes` more would leave less than `reserve_bytes` free."""
    available_bytes = volume.available_bytes()
    if available_bytes - length_bytes < reserve_bytes:
        raise UnavailableError(
            Code.DISK_OUT_OF_SPACE,
            f"volume {volume.layout.volume}: {available_bytes} bytes free, {reserve_bytes} "
            f"are kept in reserve, {length_bytes} more are needed",
            hint="free space on the volume or add a volume",
        )


def check_space_of_block(volume: Volume, length_bytes: int, *, reserve_bytes: int) -> None:
    """Raise BlockFailed if `length_bytes` more would leave less than `reserve_bytes` free.

    This is not an UnavailableError, because smaller blocks may still fit on the volume.
    """
    try:
        check_space(volume, length_bytes, reserve_bytes=reserve_bytes)
    except UnavailableError as error:
        raise BlockFailed(error.code, str(error), hint=error.hint) from error


def check_volume_paths(paths: Sequence[Path]) -> None:
    """Raise RefusedError if the list of volumes is empty or has duplicates."""
    if not paths:
        raise RefusedError(Code.INVALID_CONFIG, "cannot start: no volume is configured")
    resolved = [os.path.realpath(path) for path in paths]
    twice = next((path for path in resolved if resolved.count(path) > 1), None)
    if twice is not None:
        raise RefusedError(Code.INVALID_CONFIG, f"volume {twice} is configured twice")


def check_any_opened(opened: Sequence[Volume], failed: Sequence[tuple[Path, SutureError]]) -> None:
    """Raise the first error in `failed` if no volume was opened."""
    if not opened:
        raise failed[0][1]


def failed_volume(path: Path, error: SutureError, volume_id: str) -> VolumeFacts:
    """Return the facts of a volume that could not be opened. `volume_id` is "" if it is unknown."""
    return VolumeFacts(
        volume_id=volume_id,
        path=path,
        capacity_bytes=0,
        available_bytes=0,
        used_bytes=0,
        container_count=0,
        failed=True,
        error=f"{error} ({error.hint})" if error.hint else str(error),
    )
