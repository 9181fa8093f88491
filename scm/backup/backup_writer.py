"""Backs up the control plane's state. A backup is complete only after it was read back and decoded.

The copy is written to `.NAME.building/state/data.mdb` and synced. Its bytes and rows are read
again, the manifest is written and synced, and the directory is renamed to `NAME/`. If the process
is interrupted before the rename, a hidden directory remains, which the next backup removes.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scm.backup import manifest as manifests
from scm.backup.image import check_state, copy_state, read_all_rows, sync_file
from scm.backup.manifest import BackupManifest
from scm.state.state_directory import DIRECTORY_MODE
from scm.state.state_environment import DATA
from suture.errors import Code, RefusedError, SutureError, UnavailableError

PREFIX: Final = "suture-scm-"
BUILDING: Final = ".building"
REMOVING: Final = ".removing"
LOCK: Final = ".lock"


@dataclass(frozen=True, slots=True)
class BackupResult:
    """A new backup, and the older backups that were removed."""

    path: Path
    manifest: BackupManifest
    removed: tuple[Path, ...]


def take_backup(
    data: Path,
    to: Path,
    *,
    now_ms: int,
    version: str,
    keep_count: int = 0,
    looked_at: Callable[[int], object] = lambda _count: None,
) -> BackupResult:
    """Back up the state in the directory `data` of an SCM into a new directory in `to`.

    The SCM may be running. When the new backup is complete, the newest `keep_count` backups of the
    same cluster in `to` are kept, and older ones are removed. With `keep_count` 0, all backups are
    kept. `looked_at` is called with numbers of rows that were read since its last call.

    Raise RefusedError if the state is damaged. Raise UnavailableError if the state cannot be copied
    now. After an error, there is no new backup, and all older backups remain.
    """
    check_state(data / "state")
    to.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    with _alone(to):
        _remove_unfinished(to)
        name = f"{PREFIX}{_stamp(now_ms)}"
        if (to / name).exists():
            raise RefusedError(Code.CONTAINER_EXISTS, f"cannot write {to / name}: it exists")
        building = to / f".{name}{BUILDING}"
        try:
            made = _build(data, building, now_ms=now_ms, version=version, looked_at=looked_at)
            building.rename(to / name)
            sync_file(to)
        except OSError as error:
            shutil.rmtree(building, ignore_errors=True)
            raise UnavailableError(
                Code.IO_EXCEPTION, f"cannot write {to / name}: {error}"
            ) from error
        except SutureError:
            shutil.rmtree(building, ignore_errors=True)
            raise
        removed = _remove_old(to / name, made.cluster_id, keep_count) if keep_count else ()
        return BackupResult(to / name, made, removed)


def list_backups(directory: Path) -> list[tuple[Path, BackupManifest | str]]:
    """Return the backups in a directory, oldest first.

    Each entry has the path of a backup, and its manifest. If the manifest cannot be read, the entry
    has an error text instead.
    """
    found: list[tuple[Path, BackupManifest | str]] = []
    for path in sorted(directory.glob(f"{PREFIX}*")):
        try:
            found.append((path, manifests.read_manifest(path)))
        except RefusedError as error:
            found.append((path, str(error)))
    return found


def _build(
    data: Path, building: Path, *, now_ms: int, version: str, looked_at: Callable[[int], object]
) -> BackupManifest:
    state = building / manifests.STATE
    state.mkdir(DIRECTORY_MODE, parents=True)
    copy_state(data / "state", state)
    sha256, size_bytes = manifests.sha256_of(state / DATA)
    image = read_all_rows(state, looked_at)
    made = BackupManifest(
        cluster_id=image.cluster_id,
        taken_at_ms=now_ms,
        suture_version=version,
        format_version=image.format_version,
        term=image.counters["term"],
        counters=image.counters,
        counts=image.counts,
        sha256=sha256,
        size_bytes=size_bytes,
    )
    path = building / manifests.NAME
    path.write_bytes(made.encoded())
    for one in (path, state, building):
        sync_file(one)
    if manifests.read_manifest(building) != made:
        raise UnavailableError(
            Code.IO_EXCEPTION, f"cannot verify the backup: {path} reads back different bytes"
        )
    return made


def _remove_old(new: Path, cluster_id: str, keep_count: int) -> tuple[Path, ...]:
    """Remove the oldest backups of a cluster, so that `keep_count` remain.

    Return the removed backups. Damaged backups and backups of other clusters are not removed. The
    new backup is never removed, even if its time is earlier than that of other backups.
    """
    to = new.parent
    others = [
        path
        for path, found in list_backups(to)
        if isinstance(found, BackupManifest) and found.cluster_id == cluster_id and path != new
    ]
    old = others[: max(0, len(others) + 1 - keep_count)]
    for path in old:
        grave = to / f".{path.name}{REMOVING}"
        path.rename(grave)  # a half-removed backup must not look like a backup
        sync_file(to)
        shutil.rmtree(grave)
    return tuple(old)


def _remove_unfinished(to: Path) -> None:
    for suffix in (BUILDING, REMOVING):
        for path in to.glob(f".{PREFIX}*{suffix}"):
            shutil.rmtree(path, ignore_errors=True)


def _stamp(now_ms: int) -> str:
    seconds, rest_ms = divmod(now_ms, 1_000)
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds)) + f".{rest_ms:03d}Z"


@contextmanager
def _alone(to: Path) -> Iterator[None]:
    """Hold an exclusive lock of the directory `to` while the body runs, to prevent a second backup.

    Raise UnavailableError(BUSY) if another process holds the lock.
    """
    descriptor = os.open(to / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UnavailableError(
                Code.BUSY, f"cannot back up into {to}: another backup is running"
            ) from error
        yield
    finally:
        os.close(descriptor)
