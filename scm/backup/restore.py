"""Restores a backup: it becomes the state of an SCM, which then needs a recovery.

The restore checks the backup, copies it, and checks the copy. Then it raises the counters of ids
above all assigned ids, marks the copy as restored, syncs it, and renames it to `state/`. No SCM can
open the state before the rename.
"""

import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scm.backup import manifest as manifests
from scm.backup.image import ROOM_BYTES, begin_anew, read_all_rows, sync_file
from scm.backup.manifest import BackupManifest
from scm.state.state_directory import (
    DIRECTORY_MODE,
    GROWING,
    StateDirectoryLock,
    cut_off_bytes,
    made_directory,
    remove_cut_off,
)
from scm.state.state_environment import DATA
from scm.state.state_metadata import RestoreRecord
from suture.errors import Code, RefusedError, SutureError, UnavailableError

_IGNORED: Final = frozenset({"LOCK", "lost+found"})


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of a restore."""

    manifest: BackupManifest
    restored: RestoreRecord
    was_cut_off: bool = False  # an earlier restore was interrupted, and its files were removed


def restore_backup(
    backup: Path,
    to: Path,
    *,
    now_ms: int,
    cluster_id: str = "",
    looked_at: Callable[[int], object] = lambda _count: None,
) -> RestoreResult:
    """Create the data directory of an SCM from a backup.

    If `cluster_id` is not empty, the backup must belong to that cluster. `looked_at` is called with
    numbers of rows that were read since its last call.

    Raise RefusedError before anything is written if the backup is damaged, belongs to another
    cluster, or has a time in the future. Also raise it if `to` contains anything except the files
    of an interrupted restore. Raise UnavailableError if there is not enough space, or if the state
    cannot be written.
    """
    manifest = manifests.read_manifest(backup)
    if cluster_id and cluster_id != manifest.cluster_id:
        raise RefusedError(
            Code.WRONG_CLUSTER,
            f"cannot restore {backup}: it belongs to cluster {manifest.cluster_id}, not "
            f"{cluster_id}",
        )
    if manifest.taken_at_ms > now_ms:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot restore {backup}: it was taken "
            f"{(manifest.taken_at_ms - now_ms) / 1000:.0f} s in the future, so a clock is wrong",
            hint="set the clock first: ids after a restore are taken from it",
        )
    left_bytes = cut_off_bytes(to)
    _check_empty(to, {GROWING} if left_bytes else set())
    manifests.check_bytes(backup, manifest)
    _check_room(to, manifest.size_bytes + ROOM_BYTES - left_bytes)
    made_directory(to)
    owner = StateDirectoryLock.acquire(to / "LOCK")
    try:
        was_cut_off = not (to / "state").exists() and remove_cut_off(to)
        _check_empty(to)
        restored = _restored(backup, manifest, to, now_ms, looked_at)
        return RestoreResult(manifest, restored, was_cut_off)
    except OSError as error:
        raise UnavailableError(
            Code.IO_EXCEPTION,
            f"cannot write {to}: {error}",
            hint=f"remove the incomplete {to / GROWING}, then try again",
        ) from error
    finally:
        owner.release()


def _restored(
    backup: Path,
    manifest: BackupManifest,
    to: Path,
    now_ms: int,
    looked_at: Callable[[int], object],
) -> RestoreRecord:
    growing = to / GROWING
    growing.mkdir(DIRECTORY_MODE)
    try:
        restored = _grown(backup, manifest, growing, now_ms, looked_at)
    except SutureError:
        shutil.rmtree(growing, ignore_errors=True)  # the next restore needs the name
        raise
    sync_file(growing)
    growing.rename(to / "state")
    sync_file(to)
    return restored


def _grown(
    backup: Path,
    manifest: BackupManifest,
    growing: Path,
    now_ms: int,
    looked_at: Callable[[int], object],
) -> RestoreRecord:
    shutil.copyfile(backup / manifests.STATE / DATA, growing / DATA)
    sync_file(growing / DATA)
    if manifests.sha256_of(growing / DATA) != (manifest.sha256, manifest.size_bytes):
        raise UnavailableError(
            Code.IO_EXCEPTION,
            f"cannot verify the restore: {growing / DATA} reads back different bytes",
        )
    image = read_all_rows(growing, looked_at)
    if (image.cluster_id, image.counts) != (manifest.cluster_id, manifest.counts):
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"{backup} is damaged: its content does not match its manifest",
        )
    return begin_anew(growing, taken_at_ms=manifest.taken_at_ms, now_ms=now_ms)


def _check_empty(to: Path, ignored: Collection[str] = ()) -> None:
    """Raise RefusedError if a directory contains other files than those in `ignored`.

    These files may be a state that is still needed.
    """
    try:
        found = set(os.listdir(to))  # noqa: PTH208 - also of what is no directory
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise RefusedError(Code.INVALID_CONFIG, f"{to} is no directory") from error
    names = sorted(found - _IGNORED.union(ignored))
    if names:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot restore into {to}: it is not empty: {', '.join(names[:5])}",
            hint="name a new directory, or move the files away; nothing was changed",
        )


def _check_room(to: Path, needed_bytes: int) -> None:
    """Raise UnavailableError if the disk of `to` has less than `needed_bytes` free."""
    there = next(path for path in (to, *to.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(there).free
    if free_bytes < needed_bytes:
        raise UnavailableError(
            Code.DISK_OUT_OF_SPACE,
            f"cannot restore into {to}: it needs {needed_bytes} bytes, {free_bytes} are free",
            hint="free space, or name a directory on another disk; nothing was written",
        )
